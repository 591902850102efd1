import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.slo import Slo, format_duration, parse_duration


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "0.5s"), (0.08, "80ms"), (120, "2m"), (90, "90s"), (61.5, "61.5s"), (3600, "60m")],
)
def test_durations_print_short(seconds, text) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_what_is_no_duration_is_not_printed_as_one(seconds) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        format_duration(seconds)


@given(st.floats(1e-5, 1e7))
def test_what_is_printed_reads_back(seconds) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-4)


def test_an_slo_promises_a_pause_and_perhaps_a_first_token() -> None:
    assert Slo(0.5).to_mapping() == {"pause_s": 0.5, "ttft_long_s": None, "ttft_short_s": None}
