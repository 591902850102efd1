"""What a study knows at any moment: its runs, its predictions, and what follows from them."""

from __future__ import annotations

from engine.core.config import PrefillPolicy, SchedulerConfig
from tuner.budget import Budget
from tuner.runner import Runner
from tuner.search.best import allowed_by, baseline_of, best_of, by_hand_of, settled
from tuner.search.elsewhere import Elsewhere
from tuner.search.objective import ABORT_RATIO, Allowed, Score, score
from tuner.search.plan import Plan
from tuner.search.prescreen import Prescreen
from tuner.search.race import Race
from tuner.search_space import describe, unchunked
from tuner.store.models import TrialKind, TrialStatus
from tuner.trials import Trial

# So many of the cheapest are simulated in several windows, and as many of those that are then the cheapest.
_CONTENDERS, _LOOKS = 8, 4


class Knowledge:
    """A study's own view of what has happened so far.

    Args:
        prescreen: None without a simulator.

    Attributes:
        known: configs that one has, or finds by hand.
        idle_knobs: that do nothing on this traffic.
    """

    def __init__(self, plan: Plan, runner: Runner, budget: Budget, prescreen: Prescreen | None) -> None:
        self.plan = plan
        self.runner = runner
        self.budget = budget
        self.prescreen = prescreen
        self.known: list[SchedulerConfig] = [plan.space.base]
        self.idle_knobs: tuple[str, ...] = ()
        self._elsewhere = Elsewhere(runner.predictor, unchunked(plan.space.base), plan.seed)
        runner.is_surprising = lambda trial: self.race().is_surprising(trial)

    @property
    def baseline(self) -> Trial | None:
        """The latest run without chunking."""
        return baseline_of(self.runner.trials)

    @property
    def by_hand(self) -> Trial | None:
        """The rule of thumb's run that kept the SLO, if one did."""
        return by_hand_of(self.runner.trials, self.plan.slo_pause_s)

    @property
    def allowed(self) -> Allowed:
        """What others may be made to pay, in the study's own window."""
        return allowed_by(self.runner.trials, self.plan.slo_pause_s)

    @property
    def abort_s(self) -> float:
        """A pause that ends a run."""
        return ABORT_RATIO * self.plan.slo_pause_s

    @property
    def run_s(self) -> float:
        """How long a run takes."""
        return self.runner.typical_run_s(self.plan.expected_run_s)

    def race(self, without: SchedulerConfig | None = None) -> Race:
        """Every config's standing by now; contenders are simulated in several windows for it.

        Args:
            without: a config whose searched runs are left out: what selected it is no evidence for it.
        """
        for _ in range(_LOOKS):
            race = self._race(without)
            first = race.promising()
            wanted = [*race.contenders(_CONTENDERS), *([first[0].config] if first else [])]
            if self.prescreen is None or self.prescreen.is_close(wanted):
                break
            self.prescreen.look_closer(wanted)
        return race

    def _race(self, without: SchedulerConfig | None) -> Race:
        trials = [t for t in self.runner.trials if t.config != without or t.kind is not TrialKind.SEARCH]
        found = self.prescreen.found.values() if self.prescreen else ()
        open_to = [prediction for prediction in found if self._leaves_idle_alone(prediction.config)]
        allowed, seed = self.allowed, self.plan.seed
        return Race(self.plan.space, trials, open_to, allowed, self._is_fair, seed, self.known)

    def _is_fair(self, trial: Trial) -> bool:
        return self.score(trial).fair

    def _leaves_idle_alone(self, config: SchedulerConfig) -> bool:
        base = self.plan.space.base
        return all(getattr(config, name) == getattr(base, name) for name in self.idle_knobs)

    def settled(self) -> list[Trial]:
        """Runs that ended and count."""
        return settled(self.runner.trials)

    def score(self, trial: Trial) -> Score:
        allowed = self.allowed
        if trial.seed != self.plan.seed:
            allowed = self._elsewhere.allowed(allowed, trial.seed, trial.counts)
        return score(trial, self.plan.slo_pause_s, allowed)

    def keeps(self, trial: Trial) -> bool:
        return trial.is_complete and self.score(trial).feasible

    def num_searched(self) -> int:
        """Configs asked for in this round, whatever became of them; a run that was lost is made again."""
        self.runner.refresh()
        round_ = self.runner.study.round
        asked = [t for t in self.runner.trials if t.kind is TrialKind.SEARCH and t.round == round_]
        return len({trial.config for trial in asked if trial.status is not TrialStatus.LOST})

    def has_time(self) -> bool:
        """Whether another run fits before the time that the confirmation needs.

        As long as there is nothing to confirm, the whole budget goes into finding something. Then two
        candidates must still fit: the first may fail, or be near the border.
        """
        near = any(t.is_complete and (t.worst_pause_s or 0.0) <= self.abort_s for t in self.chunked())
        return self.budget.left_s > self.run_s * (1 + 2 * self.plan.replicates * near)

    def chunked(self) -> list[Trial]:
        return [t for t in self.settled() if t.config.prefill_policy is not PrefillPolicy.WHOLE]

    def best(self) -> Trial | None:
        """The cheapest run that kept the SLO on the study's own window."""
        return best_of(self.runner.trials, self.plan.slo_pause_s, self.plan.seed)


def numbers_of(trial: Trial) -> str:
    """What a person is told of a run."""
    if trial.status is TrialStatus.CRASHED:
        return f"crashed: {trial.problems}"
    if trial.status is TrialStatus.INVALID:
        return "could not be measured"
    if trial.worst_pause_s is None:
        return trial.problems or "nothing streamed"
    if trial.is_bound:
        return f"stopped early: a stream paused {trial.worst_pause_s:.2f} s"
    ttft = "long prompts lost" if trial.long_ttft_p95_s is None else f"{trial.long_ttft_p95_s:.2f} s"
    return f"{ttft} at {trial.worst_pause_s:.2f} s ({describe(trial.config)})"
