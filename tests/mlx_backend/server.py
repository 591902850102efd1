"""A scheduler around an executor, stepped by hand."""

from __future__ import annotations

from engine.core.config import parse_config
from engine.core.events import Event, FinishedEvent, StepRecord, TokenEvent
from engine.core.pipeline import Pipeline
from engine.core.request import Request
from engine.core.scheduler import Scheduler, run_step
from engine.mlx_backend.executor import MlxExecutor


class Server:
    """A scheduler around the executor, stepped by hand."""

    def __init__(self, executor: MlxExecutor, **knobs: object) -> None:
        self.executor = executor
        self.scheduler = Scheduler(executor.info, parse_config(knobs))
        self.tokens: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self._pipeline = Pipeline(executor)

    def submit(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.submit(request)
            self.tokens[request.id] = []

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            run_step(self.scheduler, self._pipeline, lambda: 0.0, self._emit)
            use = self.scheduler.occupancy.prefix_cache
            assert self.executor.checkpoint_bytes == use.num_bytes <= use.max_bytes

    def run(self) -> None:
        while not self.scheduler.is_idle:
            self.step()

    def forget(self) -> None:
        """Leaves the executor without checkpoints for the next scheduler."""
        self.scheduler.configure(parse_config({"prefix_cache_bytes": 0}), 2)
        self.run()
        assert self.executor.checkpoint_bytes == 0

    def _emit(self, record: StepRecord, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, TokenEvent):
                self.tokens[event.request_id].append(event.token)
            elif isinstance(event, FinishedEvent):
                self.cached[event.request_id] = event.timeline.cached_tokens
