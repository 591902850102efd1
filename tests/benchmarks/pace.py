"""Whether the paced policy keeps its target, and what that costs against the best fixed chunk that does.

    python -m tests.benchmarks.pace --prompts 2000 8000 32000 --targets 0.1 0.3 1.0

Streams write all the time; long prompts of every length come one after the other. First rounds do not count:
a server that has served a while knows its costs, and has built what its device builds for each new shape. For
each target prints the share of steps beyond it, the p99 and the worst step, and for each prompt length the
mean time to first token, as a ratio to the best fixed chunk whose p99 step keeps the target too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from engine.core.config import parse_config
from engine.core.cost_fit import fit_cost_model
from engine.core.cost_model import CostModel
from engine.core.events import StepRecord
from engine.core.quantiles import nearest_rank
from engine.mlx_backend.executor import MlxExecutor
from engine.warmup import warm_up
from tests.benchmarks.random_model import add_shape_flags, build
from tests.benchmarks.rig import Rig, random_prompt

# A step may be this much longer than its target.
TOLERANCE = 1.1


@dataclass(slots=True)
class Round:
    """Every prompt a few times, beside streams.

    Attributes:
        steps_s: durations of the steps that read while somebody streamed.
        ttft_s: mean by prompt length.
        records: all steps, those of rounds that do not count too.
    """

    steps_s: list[float] = field(default_factory=list)
    ttft_s: dict[int, float] = field(default_factory=dict)
    records: list[StepRecord] = field(default_factory=list)

    @property
    def p99_s(self) -> float:
        return nearest_rank(self.steps_s, 0.99) or 0.0

    def keeps(self, target_s: float) -> bool:
        return self.p99_s <= TOLERANCE * target_s


def play(
    executor: MlxExecutor, args: argparse.Namespace, costs: CostModel | None = None, **knobs: Any
) -> Round:
    """Args: costs: what is known already; learned on the way when None."""
    limits = {"max_queue_wait_s": 86400, "max_waiting_prefill_tokens": 1 << 30, "prefix_cache_bytes": 0}
    rig = Rig(executor, parse_config({**limits, **knobs}), args.vocab)
    if costs:
        rig.calibrate(costs)
    rig.start_streams(args.streams)
    for _ in range(args.practice):
        _read_prompts(rig, args)
    first = len(rig.records)
    waits = [_read_prompts(rig, args) for _ in range(args.rounds)]
    played = Round(ttft_s={length: fmean(wait[length] for wait in waits) for length in args.prompts})
    played.records = rig.records
    played.steps_s = [r.duration_s for r in rig.records[first:] if r.prefill and r.work.decode_rows]
    rig.close()
    return played


def _read_prompts(rig: Rig, args: argparse.Namespace) -> dict[int, float]:
    """Returns: times to first token, seconds, by length."""
    ttft_s = {}
    for length in args.prompts:
        name = f"long{len(rig.arrivals)}"
        sent_at_s = rig.submit(name, random_prompt(len(rig.arrivals), length, args.vocab), 2)
        rig.run_until(lambda name=name: len(rig.arrivals[name]) == 2, learn=True)  # type: ignore[misc]
        ttft_s[length] = rig.arrivals[name][0] - sent_at_s
    return ttft_s


def learn(executor: MlxExecutor, args: argparse.Namespace) -> CostModel:
    """What a server that has served this traffic knows of its costs."""
    rounds = [play(executor, args, prefill_policy="paced", pause_target_s=t) for t in args.targets]
    return fit_cost_model([record for played in rounds for record in played.records]).costs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, nargs="+", default=[2000, 8000, 32000])
    parser.add_argument("--targets", type=float, nargs="+", default=[0.1, 0.3, 1.0])
    parser.add_argument("--fixed", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--streams", type=int, default=3)
    parser.add_argument("--practice", type=int, default=1, help="rounds that do not count")
    parser.add_argument("--rounds", type=int, default=1, help="rounds that do")
    add_shape_flags(parser)
    args = parser.parse_args()
    executor = MlxExecutor(build(args))
    warm_up(executor, time.perf_counter)
    costs = learn(executor, args)
    fixed: dict[int, Round] = {}
    for chunk in args.fixed:
        fixed[chunk] = play(executor, args, prefill_chunk_tokens=chunk)
        _say(f"fixed {chunk}", fixed[chunk])
    for target_s in args.targets:
        paced = play(executor, args, costs, prefill_policy="paced", pause_target_s=target_s)
        _say(f"paced to {target_s:g} s", paced)
        _compare(paced, target_s, fixed, args.prompts)
    executor.close()


def _say(name: str, played: Round) -> None:
    waits = "  ".join(f"{length:,}: {ttft_s:.2f} s" for length, ttft_s in played.ttft_s.items())
    print(
        f"{name:<16} {len(played.steps_s):4d} steps  p99 {played.p99_s:.3f} s  "
        f"worst {max(played.steps_s):.3f} s   TTFT {waits}",
        flush=True,
    )


def _compare(paced: Round, target_s: float, fixed: dict[int, Round], prompts: Sequence[int]) -> None:
    beyond = sum(step_s > target_s for step_s in paced.steps_s) / len(paced.steps_s)
    verdict = "kept" if paced.keeps(target_s) else "BROKEN"
    line = (
        f"{'':16} {beyond:.1%} of steps beyond the target; p99 {paced.p99_s / target_s:.2f} of it: {verdict}"
    )
    kept = [(sum(r.ttft_s.values()), chunk) for chunk, r in fixed.items() if r.keeps(target_s)]
    if kept:
        best = fixed[min(kept)[1]]
        ratios = "  ".join(f"{n:,}: {paced.ttft_s[n] / best.ttft_s[n]:.2f}" for n in prompts)
        line += f"; TTFT against fixed {min(kept)[1]}: {ratios}"
    else:
        line += "; no fixed chunk keeps it"
    print(line, flush=True)


if __name__ == "__main__":
    main()
