import pytest

from engine.core.slo import Slo, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0.5s", 0.5), ("500ms", 0.5), ("2m", 120.0), ("1h", 3600.0), (".25s", 0.25), (" 10 S ", 10.0)],
)
def test_durations_read_in_their_forms(text, seconds) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0s",
        "0ms",
        "-1s",
        "fast",
        "nan",
        "inf",
        "infs",
        "1e3s",
        "5",
        "5 parsecs",
        "s",
        "1.s",
        "9" * 400 + "s",
        "٣s",
    ],
)
def test_anything_else_is_refused_in_a_line_that_names_the_forms(text) -> None:
    with pytest.raises(ValueError, match=r"500ms, 0\.5s or 2m"):
        parse_duration(text)


def test_an_slo_promises_a_pause_and_perhaps_a_first_token() -> None:
    assert Slo(0.5).to_mapping() == {"pause_s": 0.5, "ttft_long_s": None, "ttft_short_s": None}
