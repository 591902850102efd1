from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.tuner.html_report.sim_study import CAPACITY, LONGS, evidence_of, sim_bench
from tuner.html_report.lanes import MOST_LANES, Lane, Run, long_prompts, run_of, view_of
from tuner.store.models import RequestRow
from tuner.timeline import Chunk, RunTimeline

SLO_S = 0.5


def row(name: str, at_s: float = 0.0, **values: object) -> RequestRow:
    given = {
        "kind": name.split("-")[0],
        "outcome": "completed",
        "ended_at_s": at_s + 10.0,
        "prompt_tokens": 50,
    }
    return RequestRow(trial_id=1, request_id=name, scheduled_at_s=at_s, timings={}, **{**given, **values})


def chunk(owner: str | None, from_s: float, to_s: float, num_tokens: int = 100) -> Chunk:
    return Chunk(owner, 0, num_tokens, from_s, to_s)


def run(rows: list[RequestRow], events: dict[str, tuple[float, ...]], *chunks: Chunk) -> Run:
    return run_of(0, "c", 1, rows, RunTimeline(events, chunks), SLO_S)


def stream_of(*chunks: Chunk, until_s: float = 2.0) -> Lane:
    """A stream that stands still from 1 s on."""
    rows = [row("stream-0"), row("long-0", 0.5)]
    return run(rows, {"stream-0": (0.9, 1.0, until_s)}, *chunks).lanes[0]


def test_a_long_gap_names_the_prompt_that_was_read_meanwhile() -> None:
    (pause,) = stream_of(chunk("long-0", 1.02, 1.95)).pauses
    assert (pause.from_s, pause.to_s, pause.whose, pause.num_tokens) == (1.0, 2.0, "long 1", 100)
    assert pause.cause == "100 tokens of long 1 were read"


def test_of_several_steps_the_one_that_took_most_is_to_blame() -> None:
    (pause,) = stream_of(chunk("stream-0", 0.8, 1.1, 7), chunk("long-0", 1.1, 1.98)).pauses
    assert pause.whose == "long 1"


def test_all_prompts_of_a_step_are_to_blame() -> None:
    (pause,) = stream_of(chunk("long-0", 1.0, 2.0, 60), chunk(None, 1.0, 2.0, 40)).pauses
    assert pause.cause == "60 tokens of long 1 and 40 tokens of another prompt were read"
    assert pause.num_tokens == 100


def test_a_gap_in_which_hardly_anything_was_read_is_nobodys_prompt() -> None:
    (pause,) = stream_of(chunk("long-0", 1.0, 1.2)).pauses
    assert (pause.whose, pause.num_tokens) == ("", 0)
    assert "no prompt was being read" in pause.cause


def test_an_engine_without_step_records_is_said_to_have_none() -> None:
    assert stream_of().pauses[0].cause == "the engine gave no step records"


def test_a_gap_within_the_slo_is_no_pause() -> None:
    assert stream_of(until_s=1.5).pauses == ()


def test_a_stream_that_never_went_on_pauses_to_its_end() -> None:
    cut = row("stream-0", worst_pause_open=True, worst_pause_s=9.0)
    (lane,) = run([cut], {"stream-0": (0.9, 1.0)}, chunk(None, 1.0, 9.9)).lanes
    (pause,) = lane.pauses
    assert pause.is_open
    assert (pause.from_s, pause.to_s) == (1.0, 10.0)


def test_the_warm_up_has_no_lane_but_its_names_are_taken() -> None:
    lanes = run([row("long-0", measured=False), row("long-1", 1.0)], {}).lanes
    assert [lane.label for lane in lanes] == ["long 2"]


def test_of_a_big_run_the_worst_moment_is_shown() -> None:
    rows = [row(f"stream-{n}", 1.0 * n, ended_at_s=n + 3.0) for n in range(300)]
    rows.append(row("long-0", 200.2, ended_at_s=204.0))
    events = {f"stream-{n}": (n + 1.0, n + 1.4, n + 1.8) for n in range(300)}
    events["stream-200"] = (200.5, 201.0, 203.0)
    events["long-0"] = (203.0,)
    big = run(rows, events, chunk("long-0", 201.0, 203.0))
    view = view_of(big, None)
    assert {"stream-200", "long-0"} <= set(view.shown)
    assert len(view.shown) <= MOST_LANES
    assert view.from_s < 200.2 < 203.0 < view.to_s
    assert view.to_s - view.from_s < 10.0
    assert view.num_requests == 301


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    evidence = evidence_of(sim_bench(tmp_path_factory.mktemp("lanes"), drift=1.0))
    assert evidence.before is not None
    assert evidence.after is not None
    return evidence.before, evidence.after


def test_both_runs_are_of_the_same_traffic(simulated: tuple[Run, Run]) -> None:
    before, after = simulated
    assert before.seed == after.seed
    assert [lane.label for lane in before.lanes] == [lane.label for lane in after.lanes]


def test_every_long_pause_of_a_simulated_run_is_some_long_prompts(simulated: tuple[Run, Run]) -> None:
    before, after = simulated
    pauses = [pause for lane in before.lanes for pause in lane.pauses]
    assert len(pauses) >= 3
    assert all("tokens of long" in pause.cause for pause in pauses)
    assert [pause for lane in after.lanes for pause in lane.pauses] == []


def test_chunks_add_up_to_the_prompt(simulated: tuple[Run, Run]) -> None:
    for lane in (lane for drawn in simulated for lane in drawn.lanes):
        assert sum(chunk.num_tokens for chunk in lane.chunks) == lane.prompt_tokens


def test_a_prompt_read_alone_has_an_overhead_and_an_efficiency(simulated: tuple[Run, Run]) -> None:
    """The simulator reads at exactly the cost model's price."""
    alone_s = CAPACITY.costs.prefill_seconds
    before, after = (long_prompts(drawn, len(LONGS), lambda n: alone_s(n), 0.042) for drawn in simulated)
    first = next(prompt for prompt in before if prompt.alone)
    assert first.num_chunks == 1
    assert first.overhead == pytest.approx(0.0, abs=0.1)
    assert first.efficiency == pytest.approx(1.0, abs=0.1)
    then = next(prompt for prompt in after if prompt.label == first.label)
    assert then.num_chunks > 3
    assert then.overhead is not None
    assert then.overhead > first.overhead


def test_a_prompt_that_waited_for_another_one_has_neither(simulated: tuple[Run, Run]) -> None:
    waited = [p for p in long_prompts(simulated[1], len(LONGS), lambda n: 1.0, 0.04) if not p.alone]
    assert [(prompt.label, prompt.overhead, prompt.efficiency) for prompt in waited] == [
        ("long 3", None, None)
    ]


def test_a_study_made_before_token_times_were_kept_says_so(tmp_path: Path) -> None:
    bench = sim_bench(tmp_path)
    with sqlite3.connect(tmp_path / "evenflow.db") as connection:
        connection.execute("delete from timelines")
    evidence = evidence_of(bench)
    assert (evidence.before, evidence.after) == (None, None)
