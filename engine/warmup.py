"""Work that nobody asked for, done so that the first request does not pay for first use."""

from __future__ import annotations

from collections.abc import Callable

from engine.core.config import SchedulerConfig
from engine.core.executor import Executor
from engine.core.pipeline import Pipeline
from engine.core.request import Request, SamplingParams
from engine.core.scheduler import Scheduler, run_step

# On CUDA, MLX compiles a kernel for each of three ranges of matrix heights, up to 16, 32 and more (tens of
# seconds each where no earlier run left them on disk): one prompt for each. The first is long enough to be
# cut, and for the kernels that only long chunks use.
_PROMPT_TOKENS = (160, 12, 28)
_CHUNK_TOKENS = 128
_OUTPUT_TOKENS = 12
# Steps after which the first prompt has been read and its answer is being written.
_STEPS_TO_STREAM = 4
_DRAWN = SamplingParams(temperature=1.0, top_p=0.9, seed=0)


def warm_up(executor: Executor, clock: Callable[[], float]) -> None:
    """Reads and writes a little with every kind of step: a whole and a cut prompt, greedy and drawn tokens,
    one row and two, a chunk alone and beside a stream. Compiles kernels and fills allocators. Runs on the
    engine thread.
    """
    config = SchedulerConfig(solo_chunk_tokens=_CHUNK_TOKENS, prefill_chunk_tokens=_CHUNK_TOKENS)
    scheduler = Scheduler(executor.info, config)
    pipeline = Pipeline(executor)

    def step() -> None:
        run_step(scheduler, pipeline, clock, lambda record, events: None)

    for index, num_tokens in enumerate(_PROMPT_TOKENS):
        request = Request(
            id=f"warm-up-{index}",
            prompt=[1] * min(num_tokens, executor.info.context_tokens // 2),
            max_tokens=_OUTPUT_TOKENS,
            arrived_at_s=clock(),
            sampling=_DRAWN if index else SamplingParams(),
        )
        scheduler.submit(request)
        for _ in range(_STEPS_TO_STREAM):
            step()
    while not scheduler.is_idle:
        step()
