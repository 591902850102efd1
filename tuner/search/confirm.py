"""Confirming a winner on traffic that the search has not seen, replicate by replicate.

The best of a search is lucky by selection, so its own run counts for nothing here: each candidate meets fresh
windows, and every one of them must keep the SLO. Near the border three windows prove little: a candidate gets
more until it is safe to say that nearly every window to come keeps the SLO too, or is passed over. How much
room that takes follows from how far the study's runs lie apart, not from a fixed margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.core.config import SchedulerConfig
from tuner.announce import Announcer
from tuner.search.race import Race, Standing
from tuner.search.state import Knowledge
from tuner.search_space import describe
from tuner.store.models import TrialKind, TrialStatus
from tuner.traffic.windows import confirmed_seed
from tuner.trials import Trial

# So many times the replicates are spent on candidates that fail or are near the border.
_MOST_RUNS = 3
# When one was confirmed, the next must promise so much to be tried too.
_NEXT_GAIN = 0.03
# Replicates of a candidate near the border, beyond those that all get.
MORE_REPLICATES = 3
# A candidate is worth its replicates, and has passed them, when it keeps the SLO with this probability. What
# one has already or finds by hand need not be likelier than not: it was not selected for being lucky.
_WORTH, _WORTH_KNOWN = 0.6, 0.15
_SAFE = 0.9
_SURE = 0.95
# Not worth a run even when nothing else is left.
_HOPELESS = 0.02


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the confirmation came to.

    Attributes:
        runs: the winner's fresh runs; empty when no candidate stood the test.
        narrow: they all kept the SLO, but nearly every window to come is not safe to.
        out_of_time: the budget ended while candidates were left.
    """

    runs: tuple[Trial, ...] = ()
    narrow: bool = False
    out_of_time: bool = False


class Confirmer:
    """Tries candidates in turn, the cheapest first, as long as a better one may be left."""

    def __init__(self, knowledge: Knowledge, announcer: Announcer) -> None:
        self._knowledge = knowledge
        self._plan = knowledge.plan
        self._runner = knowledge.runner
        self._announcer = announcer
        self._num_runs = 0
        self._decided: set[SchedulerConfig] = set()
        self._confirmed: list[tuple[Trial, ...]] = []
        self._narrow: list[tuple[Trial, ...]] = []

    def run(self) -> Verdict:
        """The cheapest candidate that stood; failing that, one that stood narrowly."""
        out_of_time = False
        most_runs = _MOST_RUNS * self._plan.replicates
        while self._num_runs < most_runs and (candidate := self._next()):
            if not self._has_time(self._plan.replicates):
                out_of_time = True
                break
            self._try(candidate)
        race = self._knowledge.race()
        stood = self._confirmed or self._narrow
        if not stood:
            return Verdict(out_of_time=out_of_time)
        best = self._or_current(min(stood, key=lambda runs: self._price_s(race, runs)))
        return Verdict(best, best in self._narrow, out_of_time)

    def _or_current(self, best: tuple[Trial, ...]) -> tuple[Trial, ...]:
        """What the server has already, if it stands the test too and the best does not gain on it beyond
        noise.
        """
        current = self._plan.space.base
        if not self._is_tied(best, current):
            return best
        standing = self._knowledge.race().of(current)
        if current not in self._decided and standing is not None and self._has_time(self._plan.replicates):
            self._try(standing)
        # What keeps the SLO narrowly does not take the place of what is safe.
        kept = [runs for runs in self._confirmed or self._narrow if runs[0].config == current]
        return kept[0] if kept and self._is_tied(best, current) else best

    def _is_tied(self, best: tuple[Trial, ...], current: SchedulerConfig) -> bool:
        """Whether the current config, with a fair chance to keep the SLO, is as good as the best."""
        race = self._knowledge.race()
        one, other = race.of(best[0].config), race.of(current)
        if one is None or other is None or one is other or other.safe < _WORTH_KNOWN:
            return False
        return not race.gains(one, other)

    def _next(self) -> Standing | None:
        """The cheapest that is worth it and better than what has been confirmed; when none is and nothing was
        confirmed, the safest.
        """
        left = self._undecided()
        worth = [one for one in left if self._is_worth(one)]
        if worth or self._confirmed:
            return worth[0] if worth else None
        safest = max(left, key=lambda one: one.safe, default=None)
        return safest if safest is not None and safest.safe >= _HOPELESS else None

    def _undecided(self) -> list[Standing]:
        """Candidates that would be better than what has been confirmed, the cheapest first."""
        race = self._knowledge.race()
        left = [one for one in race.standings if one.config not in self._decided]
        if self._confirmed:
            best_s = min(self._price_s(race, runs) for runs in self._confirmed)
            left = [one for one in left if one.price_s < (1.0 - _NEXT_GAIN) * best_s]
        return left

    def _is_worth(self, one: Standing) -> bool:
        """Likely enough to stand; the last one that there is time for had better be. What one would find by
        hand need not be, as long as there is time for another after it: nobody wants less than that.
        """
        if self._confirmed or not self._has_time(2 * self._plan.replicates):
            return one.safe >= _SURE
        return one.safe >= (_WORTH_KNOWN if one.config in self._knowledge.known else _WORTH)

    def _try(self, candidate: Standing) -> None:
        config, shown = candidate.config, describe(candidate.config)
        self._decided.add(config)
        self._announcer.doing(f"confirming {shown} on fresh traffic")
        runs = self._replicate(config)
        last = runs[-1]
        worst_s = max((run.worst_pause_s or 0.0 for run in runs), default=0.0)
        if last.status is TrialStatus.INVALID:
            self._announcer.done(f"{shown} could not be measured", last.problems)
        elif not self._keeps(last):
            self._announcer.done(f"{shown} did not stand", self._why(last))
        elif self._is_safe(config):
            self._announcer.done(f"confirmed {shown}", f"worst pause {worst_s:.2f} s in {len(runs)} runs")
            self._confirmed.append(tuple(runs))
        else:
            self._announcer.done(f"{shown} kept the SLO narrowly", f"worst pause {worst_s:.2f} s")
            self._narrow.append(tuple(runs))

    def _replicate(self, config: SchedulerConfig) -> list[Trial]:
        """Fresh runs: up to the first that fails, and more near the border."""
        runs: list[Trial] = []
        while len(runs) < self._plan.replicates or self._wants_more(config, len(runs)):
            seed = confirmed_seed(self._plan.seed, self._runner.study.round, len(runs))
            runs.append(self._runner.run(TrialKind.CONFIRM, config, seed, self._plan.slo_pause_s))
            self._num_runs += 1
            if not self._keeps(runs[-1]):
                break
        return runs

    def _wants_more(self, config: SchedulerConfig, num_runs: int) -> bool:
        """Near the border, as long as another candidate, that is not there, could be tried after it."""
        more = self._plan.replicates + MORE_REPLICATES - num_runs
        if more <= 0 or self._is_safe(config):
            return False
        has_other = any(one.safe >= _SURE for one in self._undecided())
        return self._has_time(more + self._plan.replicates if has_other else 1)

    def _is_safe(self, config: SchedulerConfig) -> bool:
        """By everything but the runs that selected it."""
        standing = self._knowledge.race(without=config).of(config)
        return standing is not None and standing.safe >= _SAFE

    def _keeps(self, trial: Trial) -> bool:
        return self._knowledge.keeps(trial)

    def _why(self, trial: Trial) -> str:
        if trial.worst_pause_s is None or trial.worst_pause_s <= self._plan.slo_pause_s:
            return trial.problems or "short requests waited too long, or some were lost"
        return f"paused {trial.worst_pause_s:.2f} s on fresh traffic"

    def _price_s(self, race: Race, runs: Sequence[Trial]) -> float:
        standing = race.of(runs[0].config)
        return float("inf") if standing is None else standing.price_s

    def _has_time(self, num_runs: int) -> bool:
        return self._knowledge.budget.left_to_confirm_s >= num_runs * self._runner.typical_run_s(0.0)
