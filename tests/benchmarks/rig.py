"""The engine without HTTP: scheduler, pipeline and executor, stepped in place.

Needs mlx and mlx-lm alone (and numpy, which they bring), so that it runs on any machine with a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise

import mlx.core as mx

from engine.core.admission import Admitted
from engine.core.config import SchedulerConfig
from engine.core.cost_fit import fit_cost_model
from engine.core.cost_model import CostModel
from engine.core.errors import FitError
from engine.core.events import Event, StepRecord, TokenEvent
from engine.core.executor import Executor
from engine.core.pipeline import Pipeline
from engine.core.request import FinishReason, Request
from engine.core.scheduler import Scheduler, run_step

STREAM_PROMPT_TOKENS = 64
# As the server refits, but sooner: a benchmark has fewer steps to learn from.
_REFIT_EVERY = 32


def random_prompt(seed: int, num_tokens: int, vocab: int) -> list[int]:
    return [int(t) for t in mx.random.randint(0, vocab, (num_tokens,), key=mx.random.key(seed)).tolist()]


class Rig:
    """Attributes:
    records: every step that has ended.
    arrivals: instants of each request's tokens.
    """

    def __init__(self, executor: Executor, config: SchedulerConfig, vocab: int) -> None:
        self.records: list[StepRecord] = []
        self.arrivals: dict[str, list[float]] = {}
        self._vocab = vocab
        self._context_tokens = executor.info.context_tokens
        self._scheduler = Scheduler(executor.info, config)
        self._pipeline = Pipeline(executor)

    def submit(self, request_id: str, tokens: list[int], max_tokens: int) -> float:
        """Lets a request in; the instant."""
        now_s = time.perf_counter()
        self.arrivals[request_id] = []
        request = Request(id=request_id, prompt=tokens, max_tokens=max_tokens, arrived_at_s=now_s)
        verdict = self._scheduler.submit(request)
        assert isinstance(verdict, Admitted), verdict
        return now_s

    def start_streams(self, count: int, tokens_each: int = 8) -> None:
        """Streams that go on until `close`, each with a few tokens written."""
        for index in range(count):
            prompt = random_prompt(index, STREAM_PROMPT_TOKENS, self._vocab)
            self.submit(f"stream{index}", prompt, self._context_tokens // 2)
        self.run_until(
            lambda: all(len(self.arrivals[f"stream{i}"]) >= tokens_each for i in range(count)),
        )

    def calibrate(self, costs: CostModel | None = None) -> None:
        """Gives the scheduler a cost model: this one, or one fitted to the steps so far."""
        try:
            self._scheduler.calibrate(costs or fit_cost_model(self.records).costs)
        except FitError:
            return

    def run_until(self, done: Callable[[], bool], learn: bool = False) -> None:
        while not done():
            before = len(self.records)
            run_step(self._scheduler, self._pipeline, time.perf_counter, self._emit)
            if learn and len(self.records) // _REFIT_EVERY > before // _REFIT_EVERY:
                self.calibrate()

    def close(self) -> None:
        """Ends every request."""
        for request_id in self.arrivals:
            self._scheduler.finish(request_id, FinishReason.ABORTED, time.perf_counter())
        self.run_until(lambda: self._scheduler.is_idle)

    def _emit(self, record: StepRecord, events: list[Event]) -> None:
        self.records.append(record)
        for event in events:
            if isinstance(event, TokenEvent):
                self.arrivals[event.request_id].append(event.at_s)


def worst_pause_s(streams: list[list[float]], since_s: float, until_s: float = float("inf")) -> float:
    """The longest gap that ends in an interval; 0 when nobody streams."""
    gaps = [b - a for times in streams for a, b in pairwise(times) if b >= since_s and a <= until_s]
    return max(gaps, default=0.0)
