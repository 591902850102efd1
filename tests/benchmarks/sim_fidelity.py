"""How well the simulator predicts live runs that its cost model was not fitted to.

    python -m tests.benchmarks.sim_fidelity --results fidelity.jsonl

Starts an engine, probes it as `tuner optimize` does, and plays three kinds of traffic under a dozen configs
through HTTP with the real load client. Each run is simulated at once, and the pair printed: predicted against
measured p95 of long TTFT, worst pause and share refused. At the end come the worst pairs, and medians and p90
of the errors: as they are; corrected by what the other runs teach, as a search does (`Outlook`); and at the
speed that the machine had in each run (all costs times its measured ÷ predicted step time), which leaves what
is the simulator's own.

Runs are kept in `--results`, a pair a line; the same command goes on where it stopped. A run that the load
client spoiled, or during which other programs took more than `--others` of the machine, is not counted and
made again at the next start; a run begins when they take less. The machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from engine.core.config import parse_config
from engine.core.cost_model import CostModel
from engine.core.quantiles import nearest_rank
from engine.core.report import TrialSummary
from engine.core.slo import Slo
from loadtests.traffic.offered_load import build_schedule
from loadtests.traffic.profiles import load_profile
from loadtests.traffic.schedule import Schedule
from tests.benchmarks.quiet import others_share, wait_until_quiet
from tuner.evaluation.live import LiveEvaluator, LiveServer
from tuner.evaluation.simulated import SimulatedEvaluator
from tuner.evaluation.sizing import Capacity, Probe
from tuner.reporting.terminal import TerminalAnnouncer
from tuner.search.outlook import Outlook, Place, Seen
from tuner.server.served_model import model_info
from tuner.serving import EngineChoice, serving

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
        predicted, pause_s = simulated[metric], simulated[METRICS.index("worst pause")]
        measured = self.run.measured[metric]
        if not pause_s or not predicted or not measured or math.inf in (predicted, measured):
            return None
        place = Place(parse_config(CONFIGS[self.run.config]), math.log(pause_s / self.run.slo_pause_s))
        return Pair(place, predicted, measured)

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


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} s"


def main() -> None:
    args = _parse()
    runs = [_read(line) for line in args.results.read_text().splitlines()] if args.results.exists() else []
    good = [compare(run) for run in runs if counts(run, args.others)]
    for compared in good:
        print(compared.line())
    done = {(compared.run.traffic, compared.run.config) for compared in good}
    wanted = [(name, c) for c in range(args.configs) for name, _, _ in TRAFFIC if (name, c) not in done]
    if wanted and not args.report_only:
        good += list(measure(wanted, args))
    report(good)


def measure(wanted: Sequence[tuple[str, int]], args: argparse.Namespace) -> Iterator[Compared]:
    """Live runs of what is wanted, each compared as it ends."""
    with serving(
        EngineChoice(None, backend=args.backend), None, TerminalAnnouncer(Console(stderr=True))
    ) as server:
        wait_until_quiet(args.others)
        capacity = Probe(server, 1).measure(args.slo_pause)
        print(
            f"cost model: {capacity.prefill_error:.1%} off on prefill, {capacity.decode_error:.1%} on decode"
        )
        if capacity.unexplained:
            raise SystemExit(capacity.unexplained)
        for traffic, config in wanted:
            wait_until_quiet(args.others)
            run = play(server, capacity, traffic, config, args.slo_pause)
            with args.results.open("a") as file:
                file.write(json.dumps(dataclasses.asdict(run)) + "\n")
            if counts(run, args.others):
                compared = compare(run)
                print(compared.line(), flush=True)
                yield compared
            else:
                why = "; ".join(run.problems) or f"other programs took {run.others:.0%} of the machine"
                print(f"{traffic} {config}: not counted, {why}", flush=True)


def play(server: LiveServer, capacity: Capacity, traffic: str, config: int, slo_pause_s: float) -> Run:
    schedule = schedule_of(traffic, 100 + config, slo_pause_s, capacity)
    live = LiveEvaluator(server, lambda seed: schedule, Slo(slo_pause_s))
    with others_share() as share:
        measured = live.evaluate(
            parse_config(CONFIGS[config], server.setter.original.config), schedule.seed, None
        )
    summary = measured.summary
    problems = (*measured.problems, *([measured.crash] if measured.crash else ()))
    return Run(
        traffic, config, slo_pause_s, capacity.to_mapping(), dict(server.client.model_entry()),
        (summary.long_ttft_p95_s, summary.worst_pause_s) if summary else (None, None),
        summary.shed_rate if summary else 0.0, share[0], problems,
        tuple((*step.work.features(), step.duration_s) for step in measured.steps),
    )  # fmt: skip


def schedule_of(traffic: str, seed: int, slo_pause_s: float, capacity: Capacity) -> Schedule:
    slos, duration = next((s, d) for name, s, d in TRAFFIC if name == traffic)
    profile = dataclasses.replace(load_profile(traffic), long_prefill_slos=slos, duration=duration)
    return build_schedule(profile, seed, capacity.sizing(slo_pause_s, slos))


def compare(run: Run) -> Compared:
    summary, slowed = run.predict(), run.predict(run.slowness)
    return Compared(
        run, (summary.long_ttft_p95_s, summary.worst_pause_s), summary.shed_rate,
        (slowed.long_ttft_p95_s, slowed.worst_pause_s),
    )  # fmt: skip


def counts(run: Run, others: float) -> bool:
    return not run.problems and run.others <= others


def report(compared: Sequence[Compared]) -> None:
    print(f"\n{len(compared)} pairs of a live run and its simulation")
    for metric, name in enumerate(METRICS):
        pairs = [(pair, one) for one in compared if (pair := one.pair(metric))]
        errors = [(abs(pair.error), one) for pair, one in pairs]
        corrected = corrected_errors([pair for pair, _ in pairs])
        slowed = [pair for one in compared if (pair := one.pair(metric, at_its_speed=True))]
        own = [abs(pair.error) for pair in slowed]
        print(
            f"{name:15}{_spread([e for e, _ in errors])}; corrected by the others {_spread(corrected)}; "
            f"at the run's own speed {_spread(own)}"
        )
        for error, one in sorted(errors, key=lambda entry: -entry[0])[:3]:
            print(f"    worst: {error:.0%}  {one.line()}")
    shed = [abs(one.shed - one.run.shed) for one in compared]
    print(f"{'share refused':15}{_spread(shed)} of the requests")


def corrected_errors(pairs: Sequence[Pair]) -> list[float]:
    """|corrected ÷ measured − 1| of each pair, corrected by the others: what to expect of the next run."""
    outlooks = (Outlook([o.seen for o in pairs if o is not pair]) for pair in pairs)
    return [
        abs(outlook.expect(pair.place, pair.predicted).median_s / pair.measured - 1.0)
        for outlook, pair in zip(outlooks, pairs, strict=True)
    ]


def _spread(errors: Sequence[float]) -> str:
    middle, high = nearest_rank(errors, 0.5), nearest_rank(errors, 0.9)
    return "none" if middle is None or high is None else f"median {middle:.1%}, p90 {high:.1%}"


def _read(line: str) -> Run:
    values = json.loads(line)
    return Run(**{**values, "measured": tuple(values["measured"]), "problems": tuple(values["problems"])})


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--results", type=Path, required=True, help="where runs are kept; goes on with those that are there")
    add("--backend", choices=("mlx", "sim"), default="mlx", help="sim: a device that takes what it should")
    add("--slo-pause", type=float, default=0.5, help="seconds; sizes the traffic (default %(default)s)")
    add("--configs", type=int, default=len(CONFIGS), help="so many of them (default %(default)s)")
    add("--others", type=float, default=0.1, help="most of the machine that others may take (default 0.1)")
    add("--report-only", action="store_true", help="make no runs; simulate those that are kept")
    return parser.parse_args()


if __name__ == "__main__":
    main()
