from __future__ import annotations

from engine.core.cost_model import UNFITTED
from engine.core.executor import ModelInfo
from engine.core.pipeline import Pipeline
from engine.core.plan import PrefillChunk, StepPlan
from engine.sim.executor import SimExecutor, VirtualClock
from tests.core.fakes import request


def pipeline(runs_ahead: bool = True) -> Pipeline:
    executor = SimExecutor(ModelInfo("m", 1000, 1000), UNFITTED, VirtualClock(), runs_ahead=runs_ahead)
    built = Pipeline(executor)
    list(built.execute(StepPlan(0, 1, start=(request("a"), request("b")))))
    return built


def launched(pipe: Pipeline, plan: StepPlan) -> list[str]:
    """What the plan waited for: `D1` is the decode of step 1, `P1` its chunks."""
    return [f"{'P' if s.prefill else 'D'}{s.step}" for s in pipe.execute(plan)]


def chunk(completes: bool = False) -> tuple[PrefillChunk, ...]:
    return (PrefillChunk("b", 0, 5, completes),)


def test_beside_streams_the_decode_is_waited_for_and_the_chunk_runs_on() -> None:
    pipe = pipeline()
    assert launched(pipe, StepPlan(1, 1, decode=("a",), prefill=chunk())) == ["D1"]
    assert launched(pipe, StepPlan(2, 1, decode=("a",), prefill=chunk())) == ["P1", "D2"]


def test_a_decode_alone_stays_queued_until_the_next_is_launched() -> None:
    pipe = pipeline()
    assert launched(pipe, StepPlan(1, 1, decode=("a",))) == []
    assert launched(pipe, StepPlan(2, 1, decode=("a",))) == ["D1"]
    assert launched(pipe, StepPlan(3, 1, decode=("a",), prefill=chunk())) == ["D2", "D3"]


def test_a_solo_chunk_is_nearly_over_when_the_next_is_planned() -> None:
    pipe = pipeline()
    assert launched(pipe, StepPlan(1, 1, prefill=chunk())) == []
    assert launched(pipe, StepPlan(2, 1, prefill=chunk())) == ["P1"]


def test_a_solo_chunk_that_completes_a_prompt_is_waited_for() -> None:
    assert launched(pipeline(), StepPlan(1, 1, prefill=chunk(completes=True))) == ["P1"]


def test_where_launches_block_nothing_finished_is_held_back() -> None:
    pipe = pipeline(runs_ahead=False)
    assert launched(pipe, StepPlan(1, 1, decode=("a",))) == ["D1"]
    assert launched(pipe, StepPlan(2, 1, decode=("a",), prefill=chunk())) == ["D2"]
    assert launched(pipe, StepPlan(3, 1, decode=("a",))) == ["P2", "D3"]


def test_an_empty_plan_waits_for_what_is_left() -> None:
    pipe = pipeline()
    launched(pipe, StepPlan(1, 1, decode=("a",), prefill=chunk(completes=True)))
    (settled,) = pipe.execute(StepPlan(2, 1))
    assert list(settled.tokens_by_request()) == [("b", SimExecutor.TOKEN)]
