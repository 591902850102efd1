"""Ask and tell: the search itself, which Optuna does."""

from __future__ import annotations

import contextlib
from typing import Any

import optuna
from optuna.trial import TrialState

from engine.core.config import SchedulerConfig
from tuner.search.objective import Score
from tuner.search.sampler import make_sampler
from tuner.search_space import SearchSpace

# Chosen, not measured; Optuna's own 10 would leave a dozen trials hardly any model.
_STARTUP_TRIALS = 5


class Asker:
    """A study of Optuna's: proposes configs and learns what became of them.

    The sampler is not stored with the study: it is made anew each time, with a seed that moves on, so
    that a resumed search does not repeat its picks.

    Args:
        leads: nobody else has asked for what is running; False for a process that helps another.
    """

    def __init__(self, storage: Any, name: str, space: SearchSpace, seed: int, *, leads: bool = True) -> None:
        self._space = space
        self._study = optuna.create_study(
            storage=storage, study_name=name, direction="minimize", load_if_exists=True
        )
        if leads:
            self._settle()
        self._study.sampler = make_sampler(seed + len(self._study.trials), _STARTUP_TRIALS)
        self._asked: dict[int, Any] = {}

    def _settle(self) -> None:
        """Trials that a dead process left running would stay so for ever."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._study.tell(trial.number, state=TrialState.FAIL)

    def narrow(self, space: SearchSpace) -> None:
        """Searches this space from now on."""
        self._space = space

    def enqueue(self, config: SchedulerConfig) -> None:
        """Has the config asked for next, unless it waits already or its result is known. One that was lost
        with its process is asked for again.
        """
        wanted = self._space.parameters(config)
        held = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING, TrialState.COMPLETE))
        if all(trial.system_attrs.get("fixed_params", trial.params) != wanted for trial in held):
            self._study.enqueue_trial(wanted)

    @property
    def has_enqueued(self) -> bool:
        """Whether a config waits to be asked for."""
        return bool(self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))

    def ask(self) -> tuple[int, SchedulerConfig]:
        """A number to tell the result under, and the config to try."""
        trial = self._study.ask()
        self._asked[trial.number] = trial
        return trial.number, self._space.suggest(trial)

    def tell(self, number: int, score: Score) -> None:
        """The result of an asked trial. A crash is told as a finished one: see `objective.CRASHED`."""
        trial = self._asked.pop(number)
        # A process that took over may have given it up.
        with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
            for name, value in score.constraints:
                trial.set_constraint(name, value)
            self._study.tell(trial, score.long_ttft_s)

    def forget(self, number: int) -> None:
        """The asked trial could not be measured: nothing is learnt from it."""
        self._study.tell(self._asked.pop(number), state=TrialState.FAIL, skip_if_finished=True)

    def learn(self, config: SchedulerConfig, score: Score) -> None:
        """A result that was not asked for; ignored when it is known or outside the space."""
        params = self._space.parameters(config)
        known = any(trial.params == params for trial in self._study.get_trials(deepcopy=False))
        if known or not self._space.contains(config):
            return
        trial = optuna.trial.create_trial(
            state=TrialState.COMPLETE,
            value=score.long_ttft_s,
            params=params,
            distributions=self._space.distributions(config),
            constraints=dict(score.constraints),
        )
        self._study.add_trial(trial)
