from __future__ import annotations

from tuner.reporting.text_plot import Mark, text_plot

TITLES = ("worst pause", "long TTFT")


def plot(*marks: Mark, limit_x: float = 0.5) -> list[str]:
    return text_plot(marks, limit_x=limit_x, titles=TITLES, width=21, height=5)


def test_marks_lie_by_the_logarithm_of_their_values() -> None:
    lines = plot(Mark(0.1, 10.0, "A"), Mark(1.0, 1.0, "B"), Mark(10.0, 0.1, "C"))
    at = {
        symbol: (line.index(symbol), n) for n, line in enumerate(lines) for symbol in "ABC" if symbol in line
    }
    (left, top), middle, (right, bottom) = at["A"], at["B"], at["C"]
    assert middle == ((left + right) / 2, (top + bottom) / 2)


def test_the_limit_is_a_line_with_its_value_under_it() -> None:
    lines = plot(Mark(0.05, 1.0, "A"), Mark(5.0, 2.0, "B"))
    column = lines[2].index("┊")
    assert "0.5 s" in lines[-2][column - 4 : column + 6]
    assert sum("┊" in line for line in lines) == 5


def test_a_single_mark_is_drawn_too() -> None:
    assert any("A" in line for line in plot(Mark(0.5, 1.0, "A")))


def test_of_two_marks_in_one_place_the_later_shows() -> None:
    assert any("B" in line for line in plot(Mark(0.3, 1.0, "A"), Mark(0.3, 1.0, "B")))


def test_nothing_is_drawn_of_nothing() -> None:
    assert plot() == []
