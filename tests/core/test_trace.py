import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import TraceError
from engine.core.trace import (
    TraceHeader,
    TraceOriginal,
    TraceRow,
    format_header,
    format_row,
    is_header,
    parse_header,
    parse_row,
    parse_rows,
)

HEADER = '{"v":1,"kind":"header"}'
_text = st.text(min_size=1, max_size=20)
_seconds = st.floats(0, 1e6)
_tokens = st.integers(0, 1 << 20)
_rows = st.builds(
    TraceRow,
    id=_text,
    t=_seconds,
    prompt_tokens=_tokens,
    output_tokens=_tokens,
    user=st.none() | _text,
    turn=st.none() | st.integers(0, 99),
    think_s=st.none() | _seconds,
    prefix=st.lists(_text, max_size=4).map(tuple),
    stream=st.none() | st.booleans(),
    priority=st.none() | st.integers(-9, 9),
    estimated=st.sampled_from([(), ("in",), ("in", "out")]),
    orig=st.none() | st.builds(TraceOriginal, status=st.just(200), ttft_s=st.none() | _seconds),
)


@given(_rows)
def test_a_row_reads_back_as_written(row) -> None:
    back = parse_row(format_row(row))
    assert back == row or (row.orig == TraceOriginal() and back.orig is None)


@given(
    st.builds(
        TraceHeader,
        t0=_text,
        block=st.integers(0, 999),
        text_block=st.none() | st.integers(1, 999),
        salt_id=_text,
        source=_text,
    )
)
def test_a_header_reads_back_as_written(header) -> None:
    line = format_header(header)
    assert is_header(line)
    assert parse_header(line) == header


def test_only_four_fields_are_required() -> None:
    row = parse_row('{"id": "a", "t": 0, "in": 5, "out": 6}')
    assert row == TraceRow(id="a", t=0.0, prompt_tokens=5, output_tokens=6)


def test_fields_of_later_additions_are_ignored() -> None:
    assert parse_row('{"id": "a", "t": 0, "in": 5, "out": 6, "mood": "good"}').id == "a"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"t": "soon"}, "t"),
        ({"t": -1}, "t"),
        ({"t": float("inf")}, "t"),
        ({"in": 1.5}, "in"),
        ({"in": True}, "in"),
        ({"out": None}, "out"),
        ({"id": ["a"]}, "id"),
        ({"prefix": "abc"}, "prefix"),
        ({"stream": "yes"}, "stream"),
        ({"orig": 3}, "orig"),
        ({"orig": {"ttft_s": "soon"}}, "orig.ttft_s"),
        ({"orig": {"e2e_s": -1}}, "orig.e2e_s"),
        ({"orig": {"status": []}}, "orig.status"),
        ({"cancel_s": "x"}, "cancel_s"),
        ({"t": 10**400}, "t"),
        ({"think_s": 10**400}, "think_s"),
        ({"orig": {"ttft_s": 10**400}}, "orig.ttft_s"),
        ({"in": 10**400}, "in"),
        ({"out": 10**9}, "out"),
    ],
)
def test_a_bad_row_is_one_line_with_file_line_and_field(change, field) -> None:
    values = {"id": "a", "t": 0, "in": 5, "out": 6} | change
    with pytest.raises(TraceError) as caught:
        parse_row(json.dumps(values), "monday.jsonl", 7)
    message = str(caught.value)
    assert message.startswith(f"monday.jsonl, line 7: {field} ")
    assert "\n" not in message
    assert len(message) < 200


@pytest.mark.parametrize("line", ["nonsense", "[1]", "3", '{"id": "a"'])
def test_what_is_no_object_is_refused(line) -> None:
    with pytest.raises(TraceError, match="line 3: not"):
        parse_row(line, "x", 3)


@pytest.mark.parametrize("line", ['{"v": 2, "kind": "header"}', '{"id": "a", "t": 0}', "not json"])
def test_other_versions_and_headerless_files_are_refused(line) -> None:
    with pytest.raises(TraceError, match="x, line 1"):
        parse_header(line, "x")


def test_rows_are_read_as_they_are_asked_for() -> None:
    lines = ['{"id": "a", "t": 0, "in": 1, "out": 1}', "broken"]
    rows = parse_rows(enumerate(lines, start=3), TraceHeader(), "x")
    assert next(rows).id == "a"
    with pytest.raises(TraceError, match="x, line 4: not JSON"):
        next(rows)


def test_parts_of_one_recording_may_follow_one_another_and_no_other_may() -> None:
    row = '{"id": "a", "t": 0, "in": 1, "out": 1}'
    header = TraceHeader(t0="now", salt_id="s")
    one, other = format_header(header), format_header(replace(header, salt_id="t"))
    assert len(list(parse_rows(enumerate([row, one, row], start=2), header))) == 2
    rows = parse_rows(enumerate([row, other, row], start=2), header, "x")
    next(rows)
    with pytest.raises(TraceError, match="x, line 3: another recording"):
        next(rows)
