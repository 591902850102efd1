"""How well the simulator predicts live runs that its cost model was not fitted to.

    python -m tests.benchmarks.sim_fidelity --results fidelity.jsonl

Starts an engine, probes it as `tuner optimize` does, and plays three kinds of traffic under a dozen configs
through HTTP with the real load client. Each run is simulated at once, and the pair printed: predicted
against measured p95 of long TTFT, worst pause and share refused. At the end come the worst pairs, and
medians and p90 of the errors, with how many there are (a number on one side alone is a miss: an infinite
error): as they are; corrected by what the other runs teach, as a search does (`Outlook`); and at the speed
that the machine had in each run (all costs times its measured ÷ predicted step time), which leaves what is
the simulator's own. Exits with 1 when the errors as they are miss the bar.

Runs are kept in `--results`, a pair a line; the same command goes on where it stopped, and leaves those of
another backend or SLO alone. A run that the load client spoiled, or during which other programs took more
than `--others` of the machine, is not counted and made again at the next start; a run begins when they take
less. The machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from engine.core.config import parse_config
from engine.core.slo import Slo
from tests.benchmarks.fidelity import (
    CONFIGS,
    TRAFFIC,
    Compared,
    Run,
    compare,
    counts,
    read,
    report,
    schedule_of,
)
from tests.benchmarks.quiet import others_share, wait_until_quiet
from tuner.evaluation.live import LiveEvaluator, LiveServer
from tuner.evaluation.sizing import Capacity, Probe
from tuner.reporting.terminal import TerminalAnnouncer
from tuner.serving import EngineChoice, serving


def main() -> None:
    args = _parse()
    kept = [read(line) for line in args.results.read_text().splitlines()] if args.results.exists() else []
    runs = [run for run in kept if (run.backend, run.slo_pause_s) == (args.backend, args.slo_pause)]
    if others := len(kept) - len(runs):
        print(f"{others} runs of another backend or SLO are left alone")
    good = [compare(run) for run in runs if counts(run, args.others)]
    for compared in good:
        print(compared.line())
    done = {(compared.run.traffic, compared.run.config) for compared in good}
    wanted = [(name, c) for c in range(args.configs) for name, _, _ in TRAFFIC if (name, c) not in done]
    if wanted and not args.report_only:
        good += list(measure(wanted, args))
    sys.exit(not report(good))


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
