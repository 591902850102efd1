from __future__ import annotations

import pytest

from engine.core.json_text import parse_json


@pytest.mark.parametrize(
    "text", ['{"a": [1, "\\ud83d\\ude00"]}', b'\xef\xbb\xbf{"a": [1, "\xf0\x9f\x98\x80"]}']
)
def test_text_and_bytes_give_the_value(text: str | bytes) -> None:
    assert parse_json(text) == {"a": [1, "\U0001f600"]}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, "[" * 5000 + "]" * 5000, '{"\\ud800": 1}', '["\\uDFFF"]', b"\xff", "9" * 5000],
    ids=["empty", "cut", "deep", "deep and whole", "half a pair", "other half", "no text", "long number"],
)
def test_whatever_is_wrong_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  its words are the decoder's
        parse_json(text)
