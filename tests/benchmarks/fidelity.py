"""Live runs beside their simulations: how far apart they are, and whether that keeps the bar."""

from __future__ import annotations

import dataclasses
import json
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.config import parse_config
from engine.core.cost_model import CostModel
from engine.core.quantiles import nearest_rank
from engine.core.report import TrialSummary
from engine.core.slo import Slo
from engine.sim_backend import SIM_MODEL
from loadtests.traffic.offered_load import build_schedule
from loadtests.traffic.profiles import load_profile
from loadtests.traffic.schedule import Schedule
from tuner.evaluation.simulated import SimulatedEvaluator
from tuner.evaluation.sizing import Capacity
from tuner.search.outlook import Outlook, Place, Seen
from tuner.server.served_model import model_info

# (profile, pause SLOs that a long prompt takes to read, duration in such units): a quarter of a minute each.
TRAFFIC = (("ambush", 4.0, 7.0), ("chat", 3.0, 10.0), ("overload", 3.0, 8.0))
CONFIGS: tuple[Mapping[str, Any], ...] = (
    {"prefill_policy": "whole"},
    {"prefill_chunk_tokens": 512},
    {"prefill_chunk_tokens": 256},
    {"prefill_chunk_tokens": 128},
    {"prefill_chunk_tokens": 96, "solo_chunk_tokens": 512},
    {"prefill_chunk_tokens": 64, "prefill_order": "shortest"},
    {"prefill_policy": "paced", "pause_target_s": 0.45},
    {"prefill_policy": "paced", "pause_target_s": 0.3, "prefill_order": "aged"},
    {"prefill_policy": "paced", "pause_target_s": 0.2},
    {"prefill_chunk_tokens": 192, "max_running_requests": 4, "max_waiting_requests": 2},
    {"prefill_chunk_tokens": 128, "decode_steps_per_chunk": 2},
    {"prefill_chunk_tokens": 384, "prefill_order": "shortest", "max_queue_wait_s": 4.0},
)
METRICS = ("long TTFT p95", "worst pause")
BAR_MEDIAN, BAR_P90 = 0.1, 0.2


@dataclass(frozen=True, slots=True)
class Run:
    """A config on one kind of traffic, measured; numbers in `METRICS`' order, seconds.

    Attributes:
        others: share of the machine that other programs took meanwhile.
        steps: features of each step's work, in `Work.features`' order, and its seconds: to find out what the
            simulator leaves out.
        problems: why the load client's numbers do not count; empty when they do.
    """

    traffic: str
    config: int
    slo_pause_s: float
    capacity: Mapping[str, Any]
    model: Mapping[str, Any]
    measured: tuple[float | None, float | None]
    shed: float
    others: float
    problems: tuple[str, ...] = ()
    steps: tuple[tuple[float, ...], ...] = ()

    @property
    def backend(self) -> str:
        """By the name that the simulated device's model has."""
        return "sim" if self.model["id"] == SIM_MODEL.name else "mlx"

    @property
    def seed(self) -> int:
        return 100 + self.config

    def schedule(self) -> Schedule:
        return schedule_of(self.traffic, self.seed, self.slo_pause_s, Capacity.from_mapping(self.capacity))

    @property
    def slowness(self) -> float:
        """Measured ÷ predicted seconds of all its steps."""
        costs = Capacity.from_mapping(self.capacity).costs.coefficients()
        predicted = sum(sum(map(operator.mul, costs, step)) for step in self.steps)
        return sum(step[-1] for step in self.steps) / predicted if predicted else 1.0

    def predict(self, slowness: float = 1.0) -> TrialSummary:
        """Args: slowness: all costs are this many times the fitted ones."""
        capacity = Capacity.from_mapping(self.capacity)
        costs = CostModel(*(slowness * seconds for seconds in capacity.costs.coefficients()))
        simulator = SimulatedEvaluator(
            lambda seed: self.schedule(), costs, model_info(self.model, capacity.context_tokens),
            Slo(self.slo_pause_s), capacity.surroundings,
        )  # fmt: skip
        summary = simulator.evaluate(parse_config(CONFIGS[self.config]), self.seed, None).summary
        assert summary is not None
        return summary


@dataclass(frozen=True, slots=True)
class Pair:
    """One metric of a run and of its simulation, both above zero; `place` as the search has it."""

    place: Place
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0

    @property
    def seen(self) -> Seen:
        return Seen(self.place, self.measured / self.predicted)


@dataclass(frozen=True, slots=True)
class Compared:
    """A run beside its simulation."""

    run: Run
    predicted: tuple[float | None, float | None]
    shed: float
    at_its_speed: tuple[float | None, float | None]

    def pair(self, metric: int, at_its_speed: bool = False) -> Pair | None:
        simulated = self.at_its_speed if at_its_speed else self.predicted
        predicted, measured = _number(simulated[metric]), _number(self.run.measured[metric])
        if predicted is None or measured is None:
            return None
        slo_s = self.run.slo_pause_s
        pause_s = _number(simulated[METRICS.index("worst pause")]) or slo_s
        return Pair(
            Place(parse_config(CONFIGS[self.run.config]), math.log(pause_s / slo_s)), predicted, measured
        )

    def is_missed(self, metric: int) -> bool:
        """Whether one side alone has a number: the other was infinite, or there was nothing to measure."""
        return (_number(self.predicted[metric]) is None) != (_number(self.run.measured[metric]) is None)

    def line(self) -> str:
        numbers = (
            f"{name} {_seconds(self.predicted[m])} for {_seconds(self.run.measured[m])} ({pair.error:+.0%})"
            if (pair := self.pair(m))
            else f"{name} {_seconds(self.predicted[m])} for {_seconds(self.run.measured[m])}"
            for m, name in enumerate(METRICS)
        )
        knobs = ", ".join(f"{value}" for value in CONFIGS[self.run.config].values())
        shed = f"refused {self.shed:.0%} for {self.run.shed:.0%}"
        return f"{self.run.traffic:9}{knobs:24}  " + "   ".join((*numbers, shed))


def _number(value: float | None) -> float | None:
    """One that can be compared: finite and above zero."""
    return value if value and math.isfinite(value) else None


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} s"


def schedule_of(traffic: str, seed: int, slo_pause_s: float, capacity: Capacity) -> Schedule:
    slos, duration = next((s, d) for name, s, d in TRAFFIC if name == traffic)
    profile = dataclasses.replace(load_profile(traffic), long_prefill_slos=slos, duration=duration)
    return build_schedule(profile, seed, capacity.sizing(slo_pause_s, slos))


def read(line: str) -> Run:
    """A line of the file of runs."""
    values = json.loads(line)
    return Run(**{**values, "measured": tuple(values["measured"]), "problems": tuple(values["problems"])})


def compare(run: Run) -> Compared:
    summary, slowed = run.predict(), run.predict(run.slowness)
    return Compared(
        run, (summary.long_ttft_p95_s, summary.worst_pause_s), summary.shed_rate,
        (slowed.long_ttft_p95_s, slowed.worst_pause_s),
    )  # fmt: skip


def counts(run: Run, others: float) -> bool:
    return not run.problems and run.others <= others


def report(compared: Sequence[Compared]) -> bool:
    """Whether both metrics keep the bar; that of no pair does not."""
    print(f"\n{len(compared)} runs beside their simulations")
    kept = [_report_metric(compared, metric) for metric in range(len(METRICS))]
    shed = [abs(one.shed - one.run.shed) for one in compared]
    print(f"{'share refused':15}{_spread(shed)} of the requests")
    return all(kept)


def _report_metric(compared: Sequence[Compared], metric: int) -> bool:
    pairs = [(pair, one) for one in compared if (pair := one.pair(metric))]
    missed = [one for one in compared if one.is_missed(metric)]
    errors = [(abs(pair.error), one) for pair, one in pairs] + [(math.inf, one) for one in missed]
    slowed = [pair for one in compared if (pair := one.pair(metric, at_its_speed=True))]
    print(
        f"{METRICS[metric]:15}{_spread([e for e, _ in errors])}, {len(missed)} of them a number on one side "
        f"alone; corrected by the others {_spread(corrected_errors([pair for pair, _ in pairs]))}; at the "
        f"run's own speed {_spread([abs(pair.error) for pair in slowed])}"
    )
    for error, one in sorted(errors, key=lambda entry: -entry[0])[:3]:
        print(f"    worst: {error:.0%}  {one.line()}")
    kept = keeps_bar([error for error, _ in errors])
    print(
        f"    {'ok' if kept else 'MISSED'}: the bar is a median of {BAR_MEDIAN:.0%}, a p90 of {BAR_P90:.0%}"
    )
    return kept


def keeps_bar(errors: Sequence[float]) -> bool:
    """Whether they are small enough; without any, nothing was shown."""
    middle, high = nearest_rank(errors, 0.5), nearest_rank(errors, 0.9)
    return middle is not None and high is not None and middle <= BAR_MEDIAN and high <= BAR_P90


def corrected_errors(pairs: Sequence[Pair]) -> list[float]:
    """|corrected ÷ measured − 1| of each pair, corrected by the others: what to expect of the next run."""
    outlooks = (Outlook([o.seen for o in pairs if o is not pair]) for pair in pairs)
    return [
        abs(outlook.expect(pair.place, pair.predicted).median_s / pair.measured - 1.0)
        for outlook, pair in zip(outlooks, pairs, strict=True)
    ]


def _spread(errors: Sequence[float]) -> str:
    middle, high = nearest_rank(errors, 0.5), nearest_rank(errors, 0.9)
    return (
        "none"
        if middle is None or high is None
        else f"median {middle:.1%}, p90 {high:.1%}, n = {len(errors)}"
    )
