"""The `tuner simulate` command: what a trace would come to under a config, from a cost model alone."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.core.config import SchedulerConfig, parse_config
from engine.core.cost_model import CostModel
from engine.core.errors import ConfigError, TraceError
from engine.core.executor import ModelInfo
from engine.core.json_text import parse_json
from engine.core.report import TrialSummary
from engine.core.slo import Slo
from loadtests.traffic.replay import ReplayOptions
from loadtests.traffic.schedule import Schedule
from tuner.commands.replay import ttft_line
from tuner.errors import TunerError
from tuner.evaluation.simulated import SimulatedEvaluator
from tuner.evaluation.surroundings import Surroundings, without_accidents
from tuner.reporting.terminal import in_seconds
from tuner.traffic.offered import recorded_trace

_CONTEXT_SHARE = 0.9
_UNLIMITED_KV = 1 << 40


@dataclass(frozen=True, slots=True)
class Costs:
    """What `engine fit-cost` says of a machine and a model.

    Attributes:
        num_layers: between which the server halted passes; 1 when it did not.
    """

    model: CostModel
    num_layers: int
    surroundings: Surroundings


def run(arguments: argparse.Namespace) -> int:
    """Simulates the trace and prints what came of it. Raises: TunerError."""
    costs = read_costs(arguments.cost)
    config = read_config(arguments.config) if arguments.config else SchedulerConfig()
    schedule = _schedule(arguments)
    model = ModelInfo(
        "simulated", arguments.context, _UNLIMITED_KV, num_layers=arguments.layers or costs.num_layers
    )
    simulator = SimulatedEvaluator(
        lambda seed: schedule, costs.model, model, Slo(arguments.slo_pause), costs.surroundings
    )
    began_s = time.perf_counter()
    summary = simulator.evaluate(config, arguments.seed, None).summary
    assert summary is not None
    elapsed_s = time.perf_counter() - began_s
    if arguments.json:
        said = {"simulated_in_s": elapsed_s, "config": config.to_mapping(), "notes": list(schedule.notes)}
        print(json.dumps(summary.to_mapping() | said, allow_nan=False))
    else:
        print("\n".join(_lines(summary, schedule, elapsed_s)))
    return 0


def _schedule(arguments: argparse.Namespace) -> Schedule:
    recorded = recorded_trace(arguments.trace)
    options = ReplayOptions(
        mode=arguments.mode,
        speed=arguments.speed,
        start_s=recorded.first_s,
        end_s=arguments.window and recorded.first_s + arguments.window,
        context_tokens=int(arguments.context * _CONTEXT_SHARE),
    )
    try:
        return recorded.schedule(arguments.seed, options, arguments.trace)
    except TraceError as error:
        raise TunerError(str(error)) from error


def _lines(summary: TrialSummary, schedule: Schedule, elapsed_s: float) -> list[str]:
    outcomes = ", ".join(f"{count} {name}" for name, count in summary.counts.items() if count)
    long = ttft_line(summary.long_ttft_p50_s, summary.long_ttft_p95_s, summary.long_ttft_n)
    short = ttft_line(summary.short_ttft_p50_s, summary.short_ttft_p95_s, summary.short_ttft_n)
    share, low, high = summary.attainment, summary.attainment_low, summary.attainment_high
    return [
        f"requests       {summary.num_scheduled}: {outcomes}",
        f"worst pause    {in_seconds(summary.worst_pause_s)} of {summary.num_streams} streams",
        f"long TTFT      {long} (prompts of {schedule.long_prompt_tokens} new tokens or more)",
        f"short TTFT     {short}",
        f"attainment     {share:.0%} (95 % interval {low:.0%} to {high:.0%})",
        f"simulated      {schedule.duration_s:.0f} s in {elapsed_s:.1f} s",
        *(f"! {note}" for note in schedule.notes),
    ]


# -- files -----------------------------------------------------------------------------------------------


def read_costs(path: Path) -> Costs:
    """What `engine fit-cost` printed. Raises: TunerError: it is no such file; says what is wrong."""
    values = _object(path)
    try:
        model = CostModel(**{name: float(value) for name, value in values["costs"].items()})
        ratios = [float(ratio) for ratio in values.get("ratios", ())]
        num_layers = max(1, int(values.get("num_layers", 1)))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise _no_costs(path) from error
    if not all(0.0 <= value < math.inf for value in (*model.coefficients(), *ratios)):
        raise _no_costs(path)
    return Costs(model, num_layers, Surroundings(stalls=without_accidents(ratios)))


def _no_costs(path: Path) -> TunerError:
    return TunerError(f"{path} holds no costs; make it with: engine fit-cost STEPS.jsonl > COST.json")


def read_config(path: Path) -> SchedulerConfig:
    """Knobs, as `engine serve --config` takes them. Raises: TunerError: it is no such file."""
    try:
        return parse_config(_object(path))
    except ConfigError as error:
        raise TunerError(f"{path}: {error}") from error


def _object(path: Path) -> Mapping[str, Any]:
    try:
        values = parse_json(path.read_bytes())
    except OSError as error:
        raise TunerError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise TunerError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise TunerError(f"{path} must hold a JSON object")
    return values
