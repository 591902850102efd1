from __future__ import annotations

from engine.core.cost_model import UNFITTED
from engine.core.executor import ModelInfo
from engine.core.pipeline import Pipeline
from engine.core.plan import LayeredPass, PrefillChunk, StepPlan
from engine.sim.executor import SimExecutor, VirtualClock
from tests.core.fakes import request


class Watched(SimExecutor):
    """Notes what was asked of it, in order."""

    def __init__(self, runs_ahead: bool) -> None:
        super().__init__(ModelInfo("m", 1000, 1000, runs_ahead=runs_ahead), UNFITTED, VirtualClock())
        self.calls: list[str] = []

    def launch(self, decode: tuple[str, ...], prefill: tuple[PrefillChunk, ...]) -> object:  # type: ignore[override]
        self.calls.append("launch")
        return super().launch(decode, prefill)

    def launch_rest(self, ticket: object) -> None:
        self.calls.append("launch rest")

    def wait_nearly(self, ticket: object) -> None:
        self.calls.append("wait nearly")

    def wait(self, ticket: object) -> tuple[int, ...]:
        self.calls.append("wait")
        return super().wait(ticket)  # type: ignore[arg-type]


def pipeline(runs_ahead: bool = True) -> tuple[Pipeline, list[str]]:
    executor = Watched(runs_ahead)
    built = Pipeline(executor)
    assert list(built.execute(StepPlan(0, 1, start=(request("a"), request("b"))))) == []
    return built, executor.calls


def steps(pipe: Pipeline, plan: StepPlan) -> list[int]:
    """The steps that the plan waited for."""
    return [settled.step for settled in pipe.execute(plan)]


def chunk(completes: bool = False) -> tuple[PrefillChunk, ...]:
    return (PrefillChunk("b", 0, 5, completes),)


def test_a_step_that_reads_is_nearly_over_when_the_next_is_planned() -> None:
    pipe, calls = pipeline()
    assert steps(pipe, StepPlan(1, 1, decode=("a",), prefill=chunk())) == []
    assert steps(pipe, StepPlan(2, 1, decode=("a",), prefill=chunk())) == [1]
    assert calls == ["launch", "launch rest", "wait nearly", "launch", "wait", "launch rest", "wait nearly"]


def test_a_step_that_only_writes_stays_queued_until_the_next_is_launched() -> None:
    pipe, calls = pipeline()
    assert steps(pipe, StepPlan(1, 1, decode=("a",))) == []
    assert steps(pipe, StepPlan(2, 1, decode=("a",))) == [1]
    assert calls == ["launch", "launch rest", "launch", "wait", "launch rest"]


def test_the_end_of_a_layered_pass_and_its_prompt_is_waited_for_at_once() -> None:
    layered = LayeredPass(0, 5, 5)
    pipe, calls = pipeline()
    assert (
        steps(pipe, StepPlan(1, 1, decode=("a",), prefill=(PrefillChunk("b", 0, 3, False, layered),))) == []
    )
    assert steps(pipe, StepPlan(2, 1, decode=("a",), prefill=(PrefillChunk("b", 3, 2, True, layered),))) == [
        1,
        2,
    ]
    assert calls == ["launch", "launch rest", "wait nearly", "launch", "wait", "launch rest", "wait"]


def test_where_launches_block_nothing_finished_is_held_back() -> None:
    pipe, calls = pipeline(runs_ahead=False)
    assert steps(pipe, StepPlan(1, 1, decode=("a",))) == [1]
    assert steps(pipe, StepPlan(2, 1, decode=("a",), prefill=chunk())) == [2]
    assert calls == ["launch", "launch rest", "wait", "launch", "launch rest", "wait"]


def test_an_empty_plan_waits_for_what_is_left() -> None:
    pipe, _ = pipeline()
    steps(pipe, StepPlan(1, 1, decode=("a",), prefill=chunk(completes=True)))
    (settled,) = pipe.execute(StepPlan(2, 1))
    assert [request_id for request_id, _ in settled.tokens_by_request()] == ["a", "b"]
