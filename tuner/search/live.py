"""The live search: the simulator's proposals, corrected after each run, and a few picks of Optuna's."""

from __future__ import annotations

from engine.core.config import SchedulerConfig
from tuner.announce import Announcer
from tuner.search.asker import Asker
from tuner.search.control import DriftControl
from tuner.search.race import LEAST_GAIN
from tuner.search.state import Knowledge, numbers_of
from tuner.store.models import TrialKind, TrialStatus

# These three were chosen, not measured.
# A sampler that only repeats itself has nothing left to try.
_MAX_REPEATS = 20
# Configs that are left to Optuna when the simulator promises nothing more and time is plenty: it may be wrong
# in a way that no correction sees.
_OWN_PICKS = 2
# Searched configs between two repeats of the leader.
_CONTROL_EVERY = 6


class LiveSearch:
    """Tries configs on the server until trials, time or promises are used up."""

    def __init__(self, knowledge: Knowledge, asker: Asker, announcer: Announcer) -> None:
        self._knowledge = knowledge
        self._asker = asker
        self._announcer = announcer
        self._plan = knowledge.plan
        self._own_picks = 0
        self._controlled_at = 0

    def run(self) -> None:
        """Goes on as long as there is something to gain."""
        self._learn_known()
        repeats = 0
        done = self._knowledge.num_searched()
        while done < self._plan.num_trials and repeats < _MAX_REPEATS and self._knowledge.has_time():
            if not self._propose():
                return
            number, config = self._asker.ask()
            repeats = repeats + 1 if self._is_known(config) else 0
            self._try(number, config)
            done = self._knowledge.num_searched()
            self._announce(done)
            self._control(done)

    def _learn_known(self) -> None:
        """Runs made by hand are trials too."""
        for trial in self._knowledge.settled():
            if trial.seed == self._plan.seed and trial.kind is TrialKind.RULE:
                self._asker.learn(trial.config, self._knowledge.score(trial))

    def _propose(self) -> bool:
        """Enqueues the most promising config, or leaves the pick to Optuna; False when nothing is left."""
        if self._knowledge.prescreen is None or self._asker.has_enqueued:
            return True
        promising = self._knowledge.race().promising()
        if promising is not None and promising[1] >= LEAST_GAIN:
            self._asker.enqueue(promising[0].config)
            return True
        self._own_picks += 1
        plenty_s = 2 * (self._plan.replicates + 1) * self._knowledge.run_s
        return self._own_picks <= _OWN_PICKS and self._knowledge.budget.left_s > plenty_s

    def _try(self, number: int, config: SchedulerConfig) -> None:
        knowledge = self._knowledge
        trial = knowledge.runner.run(TrialKind.SEARCH, config, self._plan.seed, knowledge.abort_s, number)
        if trial.status is TrialStatus.INVALID:
            self._asker.forget(number)
        else:
            self._asker.tell(number, knowledge.score(trial))

    def _is_known(self, config: SchedulerConfig) -> bool:
        return self._knowledge.runner.known(config, self._plan.seed, self._knowledge.abort_s) is not None

    def _control(self, done: int) -> None:
        """Repeats the best run now and then: what it was measured at must still be true."""
        best = self._knowledge.best()
        due = done < self._plan.num_trials and done - self._controlled_at >= _CONTROL_EVERY
        if not due or best is None or not self._knowledge.has_time():
            return
        self._controlled_at = done
        spread = self._knowledge.race().ttft.spread
        marks = [run for run in (self._knowledge.baseline, self._knowledge.by_hand) if run is not None]
        control = DriftControl(self._knowledge.runner, self._announcer)
        control.check(best, spread, self._knowledge.abort_s, marks)

    def _announce(self, done: int) -> None:
        best = self._knowledge.best()
        left_s = (self._plan.num_trials - done + self._plan.replicates) * self._knowledge.run_s
        shown = "none keeps the SLO so far" if best is None else f"best so far {numbers_of(best)}"
        self._announcer.searching(
            done, self._plan.num_trials, shown, min(left_s, self._knowledge.budget.left_s)
        )
