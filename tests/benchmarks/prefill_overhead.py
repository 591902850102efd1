"""What chunking costs a long prompt, alone and beside live streams.

Needs mlx and mlx-lm alone, so that it can be taken to any machine with a GPU:

    python -m tests.benchmarks.prefill_overhead --streams 0 3

Prints, for each chunk size, time to first token, its overhead over the same prompt read in one pass with
nobody else there, and how that compares with mlx-lm's one pass; the worst streaming pause; and the same for
mlx-lm's own loops in the same run. Beside streams also what they notice when the prompt's row joins them:
their gap at the join, next to the longest gap that a chunk made and to the gap of decoding with the new row.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache

from engine.core.config import SchedulerConfig, parse_config
from engine.mlx_backend.executor import MlxExecutor
from engine.warmup import warm_up
from tests.benchmarks.random_model import add_shape_flags, build
from tests.benchmarks.rig import STREAM_PROMPT_TOKENS, Rig, random_prompt, worst_pause_s

# Of the long answer: enough to see how the streams go on beside it.
_LONG_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Join:
    """Gaps of the streams, in seconds: the longest by a chunk before the prompt's last, the longer of the two
    around the prompt's first token, and the median after it.
    """

    chunk_s: float
    join_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class Result:
    """One long prompt. `worst_pause_s` is 0 when nobody streams, and nothing is joined then."""

    ttft_s: float
    worst_pause_s: float
    decode_tokens: int
    join: Join | None = None


def ours(executor: MlxExecutor, config: SchedulerConfig, long: list[int], streams: int, vocab: int) -> Result:
    """The engine's own scheduler and pipeline, without HTTP."""
    rig = Rig(executor, config, vocab)
    rig.start_streams(streams)
    sent_at_s = rig.submit("long", long, _LONG_TOKENS)
    rig.run_until(lambda: len(rig.arrivals["long"]) == _LONG_TOKENS)
    rig.close()
    return _result(rig.arrivals, sent_at_s)


def _result(arrivals: dict[str, list[float]], sent_at_s: float) -> Result:
    streams = [times for name, times in arrivals.items() if name != "long"]
    first_at_s = arrivals["long"][0]
    meanwhile = sum(sent_at_s <= at <= first_at_s for times in streams for at in times)
    pause_s, join = worst_pause_s(streams, sent_at_s), _join(streams, sent_at_s, first_at_s)
    return Result(first_at_s - sent_at_s, pause_s, meanwhile, join)


def _join(streams: list[list[float]], sent_at_s: float, first_at_s: float) -> Join | None:
    """What one stream shows: all of them wait for the same steps."""
    if not streams:
        return None
    gaps = [(since_s, until_s) for since_s, until_s in pairwise(streams[0]) if until_s >= sent_at_s]
    chunks = [until_s - since_s for since_s, until_s in gaps if until_s < first_at_s]
    at = [until_s - since_s for since_s, until_s in gaps if until_s >= first_at_s]
    # The gap that ends with the prompt's first token, or across it, and the first of the larger batch.
    return Join(max(chunks, default=0.0), max(at[:2]), median(at[2:]))


def bare(model: nn.Module, tokens: list[int], chunk: int, clear: bool) -> Result:
    """mlx-lm's way of reading a prompt: evaluate (and flush the allocator) after each chunk."""
    ids = mx.array(tokens)
    caches = make_prompt_cache(model)
    started_at_s = time.perf_counter()
    position = 0
    while position < len(tokens) - 1:
        take = min(chunk, len(tokens) - 1 - position)
        model(ids[position : position + take][None], cache=caches)
        mx.eval([cache.state for cache in caches])
        position += take
        if clear:
            mx.clear_cache()
    mx.eval(mx.argmax(model(ids[-1:][None], cache=caches)[:, -1], axis=-1))
    return Result(time.perf_counter() - started_at_s, 0.0, 0)


def batch_generator(model: nn.Module, long: list[int], streams: int, chunk: int, vocab: int) -> Result:
    """mlx-lm's continuous batching with the same streams and prompt."""
    generator = BatchGenerator(model, max_tokens=100_000, prefill_step_size=chunk)
    uids = generator.insert([random_prompt(index, STREAM_PROMPT_TOKENS, vocab) for index in range(streams)])
    arrivals: dict[str, list[float]] = {str(uid): [] for uid in uids}
    while any(len(times) < 8 for times in arrivals.values()):
        _collect(generator, arrivals, {})
    sent_at_s = time.perf_counter()
    (uid,) = generator.insert([long])
    names = {uid: "long"}
    arrivals["long"] = []
    while len(arrivals["long"]) < _LONG_TOKENS:
        _collect(generator, arrivals, names)
    generator.close()
    return _result(arrivals, sent_at_s)


def _collect(generator: BatchGenerator, arrivals: dict[str, list[float]], names: dict[int, str]) -> None:
    _, responses = generator.next()
    now_s = time.perf_counter()
    for response in responses:
        arrivals[names.get(response.uid, str(response.uid))].append(now_s)


def median_of(run: Callable[[], Result], repeat: int) -> Result:
    results = [run() for _ in range(repeat)]
    return sorted(results, key=lambda r: r.ttft_s)[len(results) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompt", type=int, default=8000)
    parser.add_argument("--chunks", type=int, nargs="+", default=[2048, 1024, 512, 256, 128])
    parser.add_argument("--streams", type=int, nargs="+", default=[0, 3])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True)
    add_shape_flags(parser)
    args = parser.parse_args()
    loaded = build(args)
    long = random_prompt(99, args.prompt, args.vocab)
    theirs = peer_rows(loaded.model, long, args) if args.peer else None
    executor = MlxExecutor(loaded)
    warm_up(executor, time.perf_counter)
    for streams in args.streams:
        our_rows(executor, long, streams, args, theirs)
    executor.close()


def our_rows(
    executor: MlxExecutor, long: list[int], streams: int, args: argparse.Namespace, theirs: Result | None
) -> None:
    """Args: theirs: mlx-lm's one pass."""
    print(f"\nours, {streams} streams", flush=True)

    def run(live: int, **knobs: object) -> Result:
        knobs = {"max_queue_wait_s": 86400, **knobs}
        return median_of(lambda: ours(executor, parse_config(knobs), long, live, args.vocab), args.repeat)

    run(0, solo_chunk_tokens=0)
    whole = run(0, solo_chunk_tokens=0)
    report("whole, alone", whole, whole, theirs)
    if streams:
        report("whole", run(streams, prefill_policy="whole"), whole, theirs)
    for chunk in args.chunks:
        report(str(chunk), run(streams, prefill_chunk_tokens=chunk, solo_chunk_tokens=chunk), whole, theirs)


def peer_rows(model: nn.Module, long: list[int], args: argparse.Namespace) -> Result:
    """Returns: the prompt in one pass."""
    print("\nmlx-lm", flush=True)
    bare(model, long, args.prompt, clear=True)
    whole = median_of(lambda: bare(model, long, args.prompt, clear=False), args.repeat)
    report("whole, alone", whole, whole)
    for chunk in args.chunks:
        report(f"{chunk} alone", median_of(partial(bare, model, long, chunk, True), args.repeat), whole)
    for streams in filter(None, args.streams):
        for chunk in args.chunks:
            run = partial(batch_generator, model, long, streams, chunk, args.vocab)
            report(f"{chunk}, {streams} streams", median_of(run, args.repeat), whole)
    return whole


def report(name: str, result: Result, whole: Result, theirs: Result | None = None) -> None:
    line = f"  {name:>18}  TTFT {result.ttft_s:7.3f} s  {_overhead(result, whole)}"
    if theirs:
        line += f" (against mlx-lm's pass {_overhead(result, theirs)})"
    if result.join:
        chunk_ms, join_ms, decode_ms = (
            1e3 * gap_s for gap_s in (result.join.chunk_s, result.join.join_s, result.join.decode_s)
        )
        line += (
            f"  worst pause {result.worst_pause_s:6.3f} s  {result.decode_tokens:4d} tokens meanwhile"
            f"  gaps: chunk {chunk_ms:.0f}, join {join_ms:.0f}, decode {decode_ms:.0f} ms"
        )
    print(line, flush=True)


def _overhead(result: Result, whole: Result) -> str:
    return f"{100 * (result.ttft_s / whole.ttft_s - 1):+6.1f} %"


if __name__ == "__main__":
    main()
