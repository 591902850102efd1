from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from engine.core.config import SchedulerConfig
from engine.core.cost_model import CostModel
from tests.tuner.engines import sim_engine
from tests.tuner.fakes import PROMPT_TOKENS, FakeServer, StudyBench
from tuner.announce import Silence
from tuner.evaluation.live import LiveServer
from tuner.evaluation.sizing import Capacity, Probe
from tuner.search_space import unchunked
from tuner.server.engine_client import EngineClient
from tuner.store.models import StudyRow, StudyStatus
from tuner.store.studies import Studies, now
from tuner.transfer import Earlier, find_earlier, measure_or_reuse

CAPACITY = Capacity(
    costs=CostModel(0.01, 0.001, 0.0, 0.01, 0.0, 0.0), prefill_error=0.1, decode_error=0.1, num_steps=40,
    stall_floor_s=0.02, context_tokens=8192,
)  # fmt: skip


def finished(studies: Studies, name: str, chunk: int, **values: Any) -> StudyRow:
    winner = {"config": SchedulerConfig(prefill_chunk_tokens=chunk).to_mapping()}
    about = {
        "slo_pause_s": 0.5, "profile": "other", "model": "m", "engine": "own", "seed": 1,
        "created_at": now(), "updated_at": f"2026-11-30T00:{chunk:04}", "status": StudyStatus.FINISHED,
        "sizing": {"capacity": CAPACITY.to_mapping(), "measured_in_s": 12.0}, "result": {"winner": winner},
    }  # fmt: skip
    return studies.add(StudyRow(name=name, **(about | values)))


def test_the_latest_study_of_this_engine_and_model_is_what_is_known(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    finished(bench.studies, "older", 128)
    finished(bench.studies, "latest", 179)
    finished(bench.studies, "same winner", 128, updated_at="2026-11-29")
    finished(bench.studies, "elsewhere", 64, engine="http://b")
    finished(bench.studies, "another model", 65, model="n")
    finished(bench.studies, "unfinished", 66, status=StudyStatus.INTERRUPTED)
    finished(bench.studies, "a loose SLO", 2048, slo_pause_s=2.0)
    finished(bench.studies, "a tight SLO", 8, slo_pause_s=0.1)
    earlier = find_earlier(bench.studies, bench.study)
    assert earlier is not None
    assert (earlier.study, earlier.capacity, earlier.measured_in_s) == ("latest", CAPACITY, 12.0)
    assert [config.prefill_chunk_tokens for config in earlier.winners] == [179, 128]


def test_costs_that_explain_nothing_are_not_taken_over(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    poor = replace(CAPACITY, unexplained="steps that read 64 tokens").to_mapping()
    finished(bench.studies, "poor", 128, sizing={"capacity": poor})
    finished(bench.studies, "old layout", 129, sizing={"capacity": {"costs": {}}})
    finished(bench.studies, "never measured", 130, sizing={}, result={})
    assert find_earlier(bench.studies, bench.study) is None


def first_searched(bench: StudyBench) -> dict[str, Any]:
    """What the server has already is known by then."""
    trials = [t for t in bench.studies.trials(bench.study) if t.kind == "search"]
    return next(t.config for t in trials if t.config != SchedulerConfig().to_mapping())


def test_what_won_elsewhere_is_tried_first(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    known = SchedulerConfig(prefill_chunk_tokens=200, max_running_requests=8)
    server = FakeServer(bench.clock)
    bench.run(server, try_first=(known,))
    assert first_searched(bench) == known.to_mapping()


def test_winners_that_this_search_could_not_pick_are_not_tried_first(tmp_path: Path) -> None:
    """Chunking off, which is the baseline; and more tokens than the prompts here have."""
    bench = StudyBench(tmp_path)
    known = SchedulerConfig(prefill_chunk_tokens=200)
    beyond = SchedulerConfig(prefill_chunk_tokens=10 * PROMPT_TOKENS)
    bench.run(FakeServer(bench.clock), try_first=(unchunked(SchedulerConfig()), beyond, known))
    assert first_searched(bench) == known.to_mapping()


def test_a_few_requests_tell_whether_a_server_is_as_it_was(tmp_path: Path) -> None:
    with sim_engine(tmp_path) as url, closing(EngineClient(url)) as client:
        server = LiveServer(client)
        measured = Probe(server, 1).measure(0.3)
        # Another program may hold up one attempt.
        assert any(Probe(server, 1).confirms(measured) for _ in range(5))
        twice = replace(measured.costs, **{name: 2 * cost for name, cost in asdict(measured.costs).items()})
        assert not Probe(server, 1).confirms(replace(measured, costs=twice))


class FakeProbe(Probe):
    """Measures and confirms what it is told to."""

    def __init__(self, confirms: bool) -> None:
        self._confirms = confirms

    def confirms(self, capacity: Capacity) -> bool:
        return self._confirms and capacity == CAPACITY

    def measure(self, slo_pause_s: float) -> Capacity:
        return replace(CAPACITY, num_steps=99)


def test_what_is_no_longer_so_is_measured_anew_and_winners_stay_worth_a_trial(tmp_path: Path) -> None:
    winner = SchedulerConfig(prefill_chunk_tokens=77)
    earlier = Earlier("before", CAPACITY, 12.0, (winner,))
    capacity, sizing = measure_or_reuse(earlier, FakeProbe(True), 0.5, Silence())
    assert (capacity, sizing["measured_in_s"]) == (CAPACITY, 12.0)
    capacity, sizing = measure_or_reuse(earlier, FakeProbe(False), 0.5, Silence())
    assert (capacity.num_steps, sizing["try_first"]) == (99, [winner.to_mapping()])
    capacity, sizing = measure_or_reuse(None, FakeProbe(True), 0.5, Silence())
    assert (capacity.num_steps, sizing["try_first"]) == (99, [])
