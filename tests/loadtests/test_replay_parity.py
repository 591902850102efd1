"""Recorded, replayed and recorded again: real processes, the simulated device."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.records import Outcome
from engine.core.trace import TraceRow
from loadtests.traffic.replay import ReplayOptions, schedule_from_trace
from tests.loadtests.recordings import BLOCK, in_order_of, lengths, record, sharing, team_traffic

NUM_REQUESTS = 20


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[TraceRow]:
    _, rows = record(team_traffic(NUM_REQUESTS, every_s=0.1), tmp_path_factory.mktemp("first") / "state")
    return rows


def test_a_replay_is_what_was_recorded(recorded: list[TraceRow], tmp_path: Path) -> None:
    schedule = schedule_from_trace(recorded, 1, block_tokens=BLOCK)
    result, rows = record(schedule, tmp_path / "state")
    assert sorted(lengths(rows)) == sorted(lengths(recorded))
    replayed = in_order_of(rows, recorded)
    assert [row.priority for row in replayed] == [row.priority for row in recorded]
    assert sharing(replayed) == sharing(recorded)
    assert result.exact_prompts
    assert (result.parity.exact_prompts, result.parity.exact_outputs) == (NUM_REQUESTS, NUM_REQUESTS)
    assert {one.outcome for one in result.records} == {Outcome.COMPLETED}


def test_a_session_replay_sends_every_turn_after_the_one_before(
    recorded: list[TraceRow], tmp_path: Path
) -> None:
    schedule = schedule_from_trace(recorded, 1, ReplayOptions(mode="session"), block_tokens=BLOCK)
    result, replayed = record(schedule, tmp_path / "state")
    assert sorted(lengths(replayed)) == sorted(lengths(recorded))
    ended = {one.id: one.ended_at_s for one in result.records}
    waiting = [request for request in schedule.requests if request.think_s is not None]
    sent = {one.id: one for one in result.records}
    assert waiting
    for request in waiting:
        assert sent[request.id].scheduled_at_s == pytest.approx(ended[request.after or ""] + request.think_s)
    assert num_following(replayed) >= len(waiting)


def num_following(rows: list[TraceRow]) -> int:
    return sum(row.after is not None for row in rows)
