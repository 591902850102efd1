"""How fast traffic is simulated: requests per second of one core, on an hour of Azure's conversation trace.

    EVENFLOW_TRACES=DIR python -m tests.benchmarks.sim_speed

Lengths are cut to the model's context, as replay cuts them. Twice over: on a device that carries all of it
and so takes the most steps, and on one a third as fast, which has to turn people away. Prints CPU seconds of
simulating and of summing up; reading the trace comes before and is the same for every config.
"""

from __future__ import annotations

import argparse
import time

from engine.core.config import SchedulerConfig
from engine.core.cost_model import CostModel
from engine.core.executor import ModelInfo
from engine.core.report import summarise
from engine.core.slo import Slo
from engine.sim.simulate import simulate
from loadtests.traffic.recorded import read_recorded
from loadtests.traffic.replay import ReplayOptions
from loadtests.traffic.schedule import Schedule
from loadtests.traffic.trace_profiles import find_trace
from tuner.evaluation.simulated import arrivals

# About an 8B-class model with a large GPU: 45,000 tokens a second read, 12 ms a step of 16 rows.
COSTS = CostModel(
    chunk_s=0.002,
    prefill_token_s=2e-5,
    prefill_token_depth_s=1e-9,
    decode_s=0.010,
    decode_row_s=1e-4,
    decode_kv_token_s=1e-8,
)
CONFIG = SchedulerConfig(max_running_requests=64)


def main() -> None:
    args = _parse()
    started_s = time.perf_counter()
    schedule = load(args.trace, args.context)
    print(
        f"{len(schedule.requests):,} requests in {schedule.duration_s / 60:.0f} min, "
        f"{sum(r.prompt_tokens for r in schedule.requests):,} prompt tokens, "
        f"{sum(r.max_tokens for r in schedule.requests):,} output tokens; read in "
        f"{time.perf_counter() - started_s:.1f} s"
    )
    model = ModelInfo("simulated", args.context, 1 << 20)
    slow = CostModel(*(3 * seconds for seconds in COSTS.coefficients()))
    for name, costs in (("carries it all", COSTS), ("a third of that", slow)):
        report(name, schedule, costs, model)


def report(name: str, schedule: Schedule, costs: CostModel, model: ModelInfo) -> None:
    requests = list(arrivals(schedule))
    began_s = time.process_time()
    run = simulate(requests, CONFIG, costs, model, with_history=False)
    ran_s = time.process_time()
    threshold = schedule.long_prompt_tokens
    summary = summarise(run.records, Slo(0.5), long_prompt_tokens=threshold)
    ended_s = time.process_time()
    steps = len(simulate(requests[:2000], CONFIG, costs, model).plans)
    print(
        f"{name}: {ran_s - began_s:.2f} s to simulate, {ended_s - ran_s:.2f} s to sum up, "
        f"{len(requests) / (ran_s - began_s):,.0f} requests a second; {steps} steps in the first 2,000; "
        f"{summary.shed_rate:.0%} refused, long TTFT p95 {summary.long_ttft_p95_s:.2f} s, "
        f"worst pause {summary.worst_pause_s:.3f} s"
    )


def load(file: str, context_tokens: int) -> Schedule:
    """The whole trace at its own times."""
    recorded = read_recorded(find_trace(file))
    options = ReplayOptions(start_s=recorded.first_s, context_tokens=int(0.9 * context_tokens))
    return recorded.schedule(1, options, "azure")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trace", default="AzureLLMInferenceTrace_conv.csv", help="default %(default)s")
    parser.add_argument("--context", type=int, default=8192, help="of the model (default %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
