from typing import Any

import pytest

from loadtests.play.stream_stats import COLUMNS, Board, row_of


def raw(**fields: Any) -> dict[str, Any]:
    events = [[1.5, 1, None], [1.6, 1, None], [2.1, 1, None]]
    return {"kind": "chat", "outcome": "completed", "scheduled_at_s": 1.0, "events": events, **fields}


def row(kind: str = "chat", ttft: float | None = 0.1, pause: float | None = 0.2, failed: bool = False) -> Any:
    return {"kind": kind, "failed": failed, "ttft_s": ttft, "worst_pause_s": pause}


def test_a_row_is_what_a_record_came_to() -> None:
    assert row_of(raw()) == {
        "kind": "chat", "failed": False, "ttft_s": 0.5, "worst_pause_s": pytest.approx(0.5),
    }  # fmt: skip


def test_without_content_there_is_neither_ttft_nor_pause() -> None:
    seen = row_of(raw(events=[], outcome="refused"))
    assert (seen["ttft_s"], seen["worst_pause_s"], seen["failed"]) == (None, None, True)


def test_who_was_still_reading_when_the_test_stopped_has_not_failed() -> None:
    assert not row_of(raw(outcome="unfinished"))["failed"]


def test_one_event_has_no_pause() -> None:
    assert row_of(raw(events=[[1.5, 1, None]]))["worst_pause_s"] is None


def test_the_table_has_a_row_for_each_kind_and_no_percentile_without_samples() -> None:
    board = Board()
    board.add(0.0, row("long", ttft=3.0, pause=None))
    for _ in range(20):
        board.add(0.0, row("chat"))
    board.add(0.0, row("chat", ttft=None, pause=None, failed=True))
    chat, long = board.table()
    assert set(chat) == set(COLUMNS)
    assert (chat["requests"], chat["failed"], chat["ttft_p50"], chat["pause_max"]) == (21, 1, 100.0, 200.0)
    assert (chat["ttft_p95"], long["ttft_p50"], long["ttft_max"], long["pause_max"]) == ("", "", 3000.0, "")


def test_charts_keep_the_longest_pause_and_the_median_ttft_of_every_interval() -> None:
    board = Board()
    for at_s, ttft, pause in ((10.1, 0.1, 0.2), (10.2, 0.2, 0.9), (11.9, 0.3, 0.3), (14.5, 0.4, 0.4)):
        board.add(at_s, row(ttft=ttft, pause=pause))
    charts = board.charts(now_s=20.0)
    assert charts["pause"] == {"chat": [(-9.0, 0.9), (-5.0, 0.4)]}
    assert charts["ttft"] == {"chat": [(-9.0, 0.2), (-5.0, 0.4)]}


def test_no_point_lies_in_the_future() -> None:
    board = Board()
    board.add(10.1, row())
    assert board.charts(now_s=10.2)["pause"] == {"chat": [(0.0, 0.2)]}


def test_old_intervals_leave_the_charts() -> None:
    board = Board()
    for minute in range(60):
        for second in range(0, 60, 2):
            board.add(60.0 * minute + second, row())
    (line,) = board.charts(now_s=3600.0)["pause"].values()
    assert len(line) == 900
    assert board.table()[0]["requests"] == 1800


def test_a_new_test_begins_with_an_empty_board() -> None:
    board = Board()
    board.add(0.0, row())
    board.clear()
    assert board.table() == []
    assert board.charts(1.0)["ttft"] == {}


def test_the_csv_file_is_the_table() -> None:
    board = Board()
    board.add(0.0, row("a, b"))
    head, line = board.csv().splitlines()
    assert head.split(",") == list(COLUMNS)
    assert line.startswith('"a, b",1,0,')
