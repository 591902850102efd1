"""How good the winner of a search is, and whether it keeps its SLO, against the truth.

    python -m tests.benchmarks.search_quality --searches 50 --workers 2

The live server is a simulation with costs and noise of its own (`search_world`); the search has a simulator
too, whose costs are wrong. The truth is an exhaustive grid over fresh windows, found once and kept in a
temporary folder. A live budget counts whatever a search runs live, in whole runs: baseline, rule of thumb,
searched configs, replicates and confirmations; a run that is stopped early counts by the time it took. For
each method and budget prints the share of searches whose winner keeps the SLO on fresh windows, the regret
of its long TTFT against the grid's best (infinite for one that breaks the SLO), and how often it is no worse
than the rule of thumb. Exits with 1 when a bar is missed, or when a search spent more than a run beyond its
budget.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import optuna

from engine.core.config import SchedulerConfig
from tests.benchmarks.search_bars import Found, Job, bars, table
from tests.benchmarks.search_world import TRAFFICS, VirtualServer, World
from tuner.announce import Silence
from tuner.budget import Budget
from tuner.evaluation.evaluators import Measurement
from tuner.paths import locate_database
from tuner.runner import Runner
from tuner.search.asker import Asker
from tuner.search.objective import ABORT_RATIO, PENALTY_S
from tuner.search.plan import Plan
from tuner.search_space import MIN_CHUNK_TOKENS, fixed_chunks
from tuner.store.database import open_database
from tuner.store.models import StudyRow
from tuner.store.studies import Studies, now
from tuner.study import Search

# Whoever is worse by less than this is not told apart by the truth's windows.
_AS_GOOD = 1.005


def search(job: Job) -> Found:
    """Makes one search and judges its winner."""
    world = World(job.traffic)
    world.load(Path(job.folder))
    server = VirtualServer(world, job.seed)
    unit_s = world.schedule_for(job.seed).duration_s
    budget_s = job.budget * unit_s
    if job.method == "ours":
        winner = _ours(job, world, server, budget_s)
    else:
        winner = _plain(job, world, server, budget_s)
    best = world.truth(world.best)
    rule = rule_of_thumb(world)
    if winner is None:
        return Found(job, server.now_s / unit_s, None, None, None, None if rule is None else False, None)
    truth = world.truth(winner)
    return Found(
        job=job,
        spent=server.now_s / unit_s,
        keeps=truth.keeps,
        strictly=truth.broken == 0,
        regret=truth.long_ttft_s / best.long_ttft_s - 1.0,
        no_worse=None if rule is None else truth.long_ttft_s <= _AS_GOOD * world.truth(rule).long_ttft_s,
        winner=winner,
    )


def rule_of_thumb(world: World) -> SchedulerConfig | None:
    """The largest power of two that really keeps the SLO, as one would find it by hand."""
    chunk = 1024
    while chunk >= MIN_CHUNK_TOKENS:
        config = fixed_chunks(world.space.base, chunk)
        if chunk < world.space.max_chunk_tokens and world.truth(config).keeps:
            return config
        chunk //= 2
    return None


def _ours(job: Job, world: World, server: VirtualServer, budget_s: float) -> SchedulerConfig | None:
    with tempfile.TemporaryDirectory() as folder:
        studies = Studies(open_database(locate_database(str(Path(folder) / "evenflow.db")), create=True))
        study = studies.add(_study_row(job, world))
        predictor = world.predictor(world.wrong_costs(job.seed, job.wrong))
        asker = Asker(optuna.storages.InMemoryStorage(), study.name, world.space, job.seed)
        runner = Runner(studies, study, server, Silence(), predictor)
        plan = Plan(
            space=world.space, seed=job.seed, num_trials=max(1, int(job.budget)),
            num_simulated=job.simulate, simulate_share=1e9,
            expected_run_s=world.schedule_for(job.seed).duration_s,
        )  # fmt: skip
        result = Search(plan, runner, asker, Budget(budget_s, server), Silence()).run()
        return None if result.winner is None else result.winner.config


def _study_row(job: Job, world: World) -> StudyRow:
    stamp = now()
    return StudyRow(
        name="benchmark", slo_pause_s=world.slo_pause_s, profile=world.traffic, model="virtual",
        engine="own", seed=job.seed, created_at=stamp, updated_at=stamp,
    )  # fmt: skip


def _plain(job: Job, world: World, server: VirtualServer, budget_s: float) -> SchedulerConfig | None:
    """The best trial of a study that spends all of its budget on searching."""
    study = optuna.create_study(sampler=SAMPLERS[job.method](job.seed), direction="minimize")
    configs: list[SchedulerConfig] = []
    while server.now_s < budget_s:
        trial = study.ask()
        configs.append(world.space.suggest(trial))
        measured = server.evaluate(configs[-1], job.seed, ABORT_RATIO * world.slo_pause_s)
        _tell(study, trial, measured, world.slo_pause_s)
    try:
        return configs[study.best_trial.number]
    except ValueError:
        return None


def _tell(study: optuna.Study, trial: Any, measured: Measurement, slo_pause_s: float) -> None:
    summary = measured.summary
    assert summary is not None
    trial.set_constraint("pause", (summary.worst_pause_s or 0.0) / slo_pause_s - 1.0)
    ttft = summary.long_ttft_p95_s
    lost = measured.aborted or ttft is None or math.isinf(ttft)
    study.tell(trial, PENALTY_S if lost else ttft)


SAMPLERS: dict[str, Callable[[int], Any]] = {
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=5),
    "gp": lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=5),
}


# -- all searches ------------------------------------------------------------------------------------------


def methods() -> list[str]:
    """All, but those whose packages are missing."""
    if all(importlib.util.find_spec(name) for name in ("torch", "scipy")):
        return [*SAMPLERS, "ours"]
    print("gp: skipped, Optuna's GPSampler needs torch and scipy, which are not installed")
    return ["random", "tpe", "ours"]


def jobs(args: argparse.Namespace) -> Iterator[Job]:
    """Searches are spread evenly over the traffics and how wrong the simulator is."""
    for method in args.methods or methods():
        for budget in args.budgets:
            for index in range(args.searches):
                traffic = args.traffics[index % len(args.traffics)]
                wrong = args.wrong[index // len(args.traffics) % len(args.wrong)]
                yield Job(method, traffic, wrong, budget, args.seed + index, args.simulate, args.folder)


def prepare(args: argparse.Namespace, traffic: str) -> str:
    """Finds a traffic's truth, or reads it."""
    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    world = World(traffic)
    world.load(folder)
    best = world.truth(world.best)
    rule = rule_of_thumb(world)
    world.save(folder)
    by_hand = "none keeps it" if rule is None else f"{rule.prefill_chunk_tokens} tokens, "
    if rule is not None:
        by_hand += f"{world.truth(rule).long_ttft_s:.2f} s"
    return f"{traffic:<8} best of the grid {best.long_ttft_s:.2f} s ({_named(world.best)}); by hand {by_hand}"


def _named(config: SchedulerConfig) -> str:
    values = dataclasses.asdict(config)
    shown = ("prefill_policy", "prefill_chunk_tokens", "pause_target_s", "prefill_order", "solo_chunk_tokens")
    return " ".join(str(values[name]) for name in shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=50)
    parser.add_argument("--budgets", type=float, nargs="+", default=[4, 8, 12, 20])
    parser.add_argument("--methods", nargs="+", choices=[*SAMPLERS, "ours"])
    parser.add_argument("--traffics", nargs="+", choices=[*TRAFFICS], default=[*TRAFFICS])
    parser.add_argument("--wrong", type=float, nargs="+", default=[0.4, 0.1])
    parser.add_argument("--simulate", type=int, default=150, help="configs that a search simulates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--folder", default=str(Path(tempfile.gettempdir()) / "evenflow-search-quality"))
    parser.add_argument("--each", action="store_true", help="prints every search")
    args = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    started_s = time.monotonic()
    with ProcessPoolExecutor(args.workers) as pool:
        for line in pool.map(prepare, [args] * len(args.traffics), args.traffics):
            print(line)
        found = []
        for one in pool.map(search, list(jobs(args))):
            found.append(one)
            if args.each:
                print(one)
    print("\n".join(table(found)))
    judged = list(bars(found))
    print("\n".join(map(str, judged)))
    print(f"{time.monotonic() - started_s:.0f} s")
    sys.exit(not all(bar.holds for bar in judged))


if __name__ == "__main__":
    main()
