from pathlib import Path

from loadtests.traces.files import open_trace
from loadtests.traces.reading import Reading
from tests.loadtests.traces.writing import AGENTS_HEAD, write

AGENTS = [
    AGENTS_HEAD,
    "s1,0,0,0.0,1000,50,0,0.0,5.5,tool_use",
    "s1,0,1,12.0,1200,20,960,6.5,,end_turn",
    "s1,1,0,14.0,300,20,0,0.0,1.0,end_turn",
    "s1,0,2,30.0,500,20,128,,1.0,",
    "s2,0,0,0.0,900,5,0,0.0,2.0,end_turn",
]


def test_agent_sessions_become_turns_and_share_what_was_cached(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path, *AGENTS), Reading(sessions_per_minute=0))
    first, second, other, third, next_session = trace.rows
    assert trace.format == "agents"
    assert [r.t for r in (first, second, other, third, next_session)] == [0, 12, 14, 30, 0]
    assert (second.session, second.turn, second.after, second.think_s) == ("s1", 1, first.id, 6.5)
    assert (other.session, other.after) == ("s1/1", None)
    assert (third.after, third.think_s) == (second.id, None)
    assert (first.orig and first.orig.e2e_s, second.orig) == (5.5, None)
    assert len(first.prefix) == 1000 // 64
    assert second.prefix[:15] == first.prefix[:15]
    assert not set(second.prefix[15:]) & set(first.prefix)
    assert third.prefix[:2] == first.prefix[:2]
    assert not set(third.prefix[2:]) & set(second.prefix)
    assert trace.notes.lines[0] == "2 sessions have a clock of their own: placed at 0"


def test_agent_sessions_start_by_a_seeded_process_and_come_in_order(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        AGENTS_HEAD,
        *[f"s{i},0,{turn},{40.0 * turn},9,9,0,0.0,1,x" for i in range(9) for turn in range(5)],
    )
    rows = list(open_trace(path, Reading(seed=1)).rows)
    assert [r.t for r in rows] == sorted(r.t for r in rows)
    assert len({r.t for r in rows if r.turn == 0}) == 9
    assert rows == list(open_trace(path, Reading(seed=1)).rows)
