"""Work that nobody asked for, done so that the first request does not pay for first use."""

from __future__ import annotations

from collections.abc import Callable

from engine.core.config import SchedulerConfig
from engine.core.executor import Executor
from engine.core.pipeline import Pipeline
from engine.core.request import Request, SamplingParams
from engine.core.scheduler import Scheduler, run_step

# Long enough for the kernels that only long chunks use.
_PROMPT_TOKENS = 160
_CHUNK_TOKENS = 128


def warm_up(executor: Executor, clock: Callable[[], float]) -> None:
    """Reads and writes a little with every kind of step: a whole and a cut prompt, greedy and drawn
    tokens, one row and two. Compiles kernels and fills allocators. Runs on the engine thread.
    """
    config = SchedulerConfig(solo_chunk_tokens=_CHUNK_TOKENS, prefill_chunk_tokens=_CHUNK_TOKENS)
    scheduler = Scheduler(executor.info, config)
    pipeline = Pipeline(executor)
    for index, sampling in enumerate((SamplingParams(), SamplingParams(temperature=1.0, top_p=0.9, seed=0))):
        request = Request(
            id=f"warm-up-{index}",
            prompt=[1] * min(_PROMPT_TOKENS >> index, executor.info.context_tokens // 2),
            max_tokens=6,
            arrived_at_s=clock(),
            sampling=sampling,
        )
        scheduler.submit(request, clock())
    while not scheduler.is_idle:
        run_step(scheduler, pipeline, clock, lambda record, events: None)
