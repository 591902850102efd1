"""A device that runs nothing and a scheduler around it, for tests in virtual time."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.config import parse_config
from engine.core.cost_model import UNFITTED, CostModel
from engine.core.events import Event, FinishedEvent, StepRecord
from engine.core.executor import ModelInfo
from engine.core.pipeline import Pipeline
from engine.core.plan import Keep, LayeredPass, PrefillChunk, Restore, StepPlan
from engine.core.request import Request
from engine.core.scheduler import Scheduler, run_step
from engine.sim.executor import SimExecutor, Ticket, VirtualClock

MODEL = ModelInfo("fake", context_tokens=8192, kv_capacity_tokens=100_000)


def request(request_id: str, prompt: int = 10, output: int = 4, at_s: float = 0.0, **rest: object) -> Request:
    return Request(id=request_id, prompt=range(prompt), max_tokens=output, arrived_at_s=at_s, **rest)  # type: ignore[arg-type]


def prefill_tokens(plan: StepPlan) -> int:
    """Prompt tokens that a step reads."""
    return sum(chunk.num_tokens for chunk in plan.prefill)


class StrictExecutor(SimExecutor):
    """Refuses work for rows that were never started or are released, and counts rows alive. Refuses a gap or
    a checkpoint in a layered pass.

    Of a checkpoint it knows the very tokens, and refuses to start another prompt from them.
    """

    def __init__(self, model: ModelInfo, costs: CostModel, clock: VirtualClock) -> None:
        super().__init__(model, costs, clock)
        self._prompts: dict[str, Sequence[int]] = {}
        self.kept: dict[int, Keep] = {}
        self._kept_tokens: dict[int, Sequence[int]] = {}
        self._under_way: dict[str, LayeredPass] = {}

    @property
    def checkpoint_bytes(self) -> int:
        sizes = self.info.checkpoints
        return sum(sizes.num_bytes(k.start, k.num_tokens) for k in self.kept.values()) if sizes else 0

    def restore(self, restore: Restore) -> None:
        super().restore(restore)
        held = self._kept_tokens[restore.checkpoint]
        assert held[: restore.num_tokens] == self._prompts[restore.request_id][: restore.num_tokens]
        assert self._divisible or restore.num_tokens == len(held)

    def launch(self, decode: tuple[str, ...], prefill: tuple[PrefillChunk, ...]) -> Ticket:
        for chunk in prefill:
            self._go_on(chunk)
        return super().launch(decode, prefill)

    def _go_on(self, chunk: PrefillChunk) -> None:
        under_way = self._under_way.pop(chunk.request_id, None)
        assert chunk.start == self.depths[chunk.request_id]
        assert under_way is None or chunk.layered == under_way
        if chunk.layered:
            assert under_way or chunk.layered.start == chunk.start
            assert chunk.layered.layers_at(chunk.start) < chunk.layered.layers_at(chunk.end)
            assert chunk.layered.halt(chunk.layered.layers_at(chunk.end)) == chunk.end
            if chunk.end < chunk.layered.end:
                self._under_way[chunk.request_id] = chunk.layered

    def release(self, request_id: str) -> None:
        super().release(request_id)
        self._under_way.pop(request_id, None)

    def keep(self, keep: Keep) -> None:
        assert keep.request_id not in self._under_way
        super().keep(keep)
        prompt = self._prompts[keep.request_id]
        if keep.parent is not None:
            assert self._kept_tokens[keep.parent] == prompt[: keep.start]
        assert self._divisible or keep.num_tokens == self.depths[keep.request_id]
        self.kept[keep.checkpoint] = keep
        self._kept_tokens[keep.checkpoint] = prompt[: keep.num_tokens]

    def drop(self, checkpoint: int) -> None:
        super().drop(checkpoint)
        del self.kept[checkpoint], self._kept_tokens[checkpoint]
        assert checkpoint not in {keep.parent for keep in self.kept.values()}

    @property
    def _divisible(self) -> bool:
        return self.info.checkpoints is not None and self.info.checkpoints.divisible

    @property
    def alive(self) -> set[str]:
        return set(self.depths)

    def start(self, request: Request) -> None:
        assert request.id not in self.depths
        self._prompts[request.id] = request.prompt
        super().start(request)


class Engine:
    """Scheduler, pipeline and virtual device, stepped by hand."""

    def __init__(self, model: ModelInfo = MODEL, **knobs: object) -> None:
        self.clock = VirtualClock()
        self.executor = StrictExecutor(model, UNFITTED, self.clock)
        self.config = parse_config(knobs)
        self.scheduler = Scheduler(model, self.config, UNFITTED)
        self._pipeline = Pipeline(self.executor)
        self.plans: list[StepPlan] = []
        self.records: list[StepRecord] = []
        self.events: list[Event] = []

    def submit(self, *requests: Request) -> list[object]:
        return [self.scheduler.submit(r) for r in requests]

    def configure(self, generation: int, **knobs: object) -> None:
        self.scheduler.configure(parse_config(knobs), generation)

    def step(self, times: int = 1) -> StepPlan:
        for _ in range(times):
            self.plans.append(run_step(self.scheduler, self._pipeline, self.clock, self._emit))
        return self.plans[-1]

    def run(self, max_steps: int = 100_000) -> None:
        for _ in range(max_steps):
            if self.scheduler.is_idle:
                return
            self.step()
        raise AssertionError("the engine never came to rest")

    def ends(self) -> dict[str, FinishedEvent]:
        ends = [event for event in self.events if isinstance(event, FinishedEvent)]
        assert len({e.request_id for e in ends}) == len(ends), "a request ended twice"
        return {event.request_id: event for event in ends}

    def _emit(self, record: StepRecord, events: list[Event]) -> None:
        self.records.append(record)
        self.events += events


def chunks_of(plans: list[StepPlan], request_id: str) -> list[tuple[int, int]]:
    return [(c.start, c.num_tokens) for p in plans for c in p.prefill if c.request_id == request_id]
