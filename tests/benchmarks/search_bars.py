"""What `search_quality` makes of its searches: a table, and the bars that ours must keep."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.core.config import SchedulerConfig
from engine.core.quantiles import nearest_rank

BAR_KEEPS, BAR_REGRET, BAR_BUDGET = 0.95, 0.05, 12
# A run that has begun is ended.
BAR_OVERSPENT = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """One search to make.

    Attributes:
        wrong: by how much each term of the simulator's costs is off at most.
        budget: live runs.
    """

    method: str
    traffic: str
    wrong: float
    budget: float
    seed: int
    simulate: int
    folder: str


@dataclass(frozen=True, slots=True)
class Found:
    """What came of it.

    Attributes:
        spent: live runs.
        regret: of the long TTFT against the grid's best; infinite when the winner does not keep the SLO, None
            without a winner.
        no_worse: than the rule of thumb; None where that does not keep the SLO.
    """

    job: Job
    spent: float
    keeps: bool | None
    strictly: bool | None
    regret: float | None
    no_worse: bool | None
    winner: SchedulerConfig | None


def table(found: Sequence[Found]) -> Iterator[str]:
    yield (
        f"{'method':<8}{'budget':>7}{'spent':>7}{'winner':>8}{'keeps SLO':>11}{'all windows':>13}"
        f"{'regret p50':>12}{'p90':>7}{'within 5 %':>12}{'≥ rule':>9}"
    )
    keys = list(dict.fromkeys((f.job.method, f.job.budget) for f in found))
    for method, budget in keys:
        yield _row(method, budget, [f for f in found if (f.job.method, f.job.budget) == (method, budget)])


def _row(method: str, budget: float, found: Sequence[Found]) -> str:
    named = [f for f in found if f.winner is not None]
    regrets = [f.regret for f in named if f.regret is not None]
    compared = [f for f in found if f.no_worse is not None]
    spent = sum(f.spent for f in found) / len(found)
    return (
        f"{method:<8}{budget:>7g}{spent:>7.1f}{_share(len(named), len(found)):>8}"
        f"{_share(sum(bool(f.keeps) for f in named), len(named)):>11}"
        f"{_share(sum(bool(f.strictly) for f in named), len(named)):>13}"
        f"{_percent(nearest_rank(regrets, 0.5)):>12}{_percent(nearest_rank(regrets, 0.9)):>7}"
        f"{_share(sum(r <= BAR_REGRET for r in regrets), len(found)):>12}"
        f"{_share(sum(bool(f.no_worse) for f in compared), len(compared)):>9}"
    )


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1%}"


@dataclass(frozen=True, slots=True)
class Bar:
    """What is asked for, whether it holds, and what was seen."""

    holds: bool
    words: str

    def __str__(self) -> str:
        return f"{'ok    ' if self.holds else 'MISSED'} {self.words}"


def bars(found: Sequence[Found]) -> Iterator[Bar]:
    """Of our own search: what its winners must do at `BAR_BUDGET` live runs, and its spending at any."""
    ours = [f for f in found if f.job.method == "ours"]
    if at_bar := [f for f in ours if f.job.budget == BAR_BUDGET]:
        yield from _winner_bars(at_bar)
    if ours:
        most = max(f.spent - f.job.budget for f in ours)
        yield Bar(
            most <= BAR_OVERSPENT,
            f"live runs spent beyond the budget: {max(0.0, most):.1f} at most (bar {BAR_OVERSPENT:g})",
        )


def _winner_bars(ours: Sequence[Found]) -> Iterator[Bar]:
    keeps = sum(bool(f.keeps) for f in ours)
    yield Bar(
        keeps >= BAR_KEEPS * len(ours),
        f"winner keeps the SLO on fresh windows: {_share(keeps, len(ours))} (bar {BAR_KEEPS:.0%})",
    )
    regrets = [f.regret if f.regret is not None else math.inf for f in ours]
    middle, within = nearest_rank(regrets, 0.5) or 0.0, sum(r <= BAR_REGRET for r in regrets)
    yield Bar(
        middle <= BAR_REGRET,
        f"regret at {BAR_BUDGET} live runs: median {middle:+.1%} (bar {BAR_REGRET:.0%}), within the bar "
        f"{_share(within, len(ours))}",
    )
    compared = [f.no_worse for f in ours if f.no_worse is not None]
    yield Bar(
        all(compared), f"never worse than the rule of thumb: {_share(sum(compared), len(compared))} (all)"
    )
