"""Running trials: one run each, written down before and after, rerun when the client spoiled it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from statistics import median

from engine.core.config import SchedulerConfig
from tuner.announce import Announcer
from tuner.evaluation.evaluators import Evaluator, Measurement
from tuner.search_space import describe
from tuner.store.models import StudyRow, TrialKind, TrialRow, TrialStatus
from tuner.store.rows import finite
from tuner.store.studies import Studies
from tuner.trials import Trial

# Chosen, not measured: what spoiled three runs in a row does not go away by itself.
MAX_RERUNS = 2
_POLL_S = 0.2

# Worst pauses come out at 1.0 to 1.3 times the simulated ones on a quiet machine (our measurement, November
# 2026). Beyond this a run is made once more; if it happens again, it counts.
_SUSPECT_RATIO = 1.5


class Runner:
    """Runs trials of one study and remembers them; a run that is already in the store is not repeated.

    Args:
        predictor: the simulator, asked about every config that is run; None when there is none.

    Attributes:
        is_surprising: whether a complete run is out of all proportion to the others.
        unmeasured: of each config that the client spoiled every attempt of: why, and what to change.
    """

    def __init__(
        self,
        studies: Studies,
        study: StudyRow,
        evaluator: Evaluator,
        announcer: Announcer,
        predictor: Evaluator | None = None,
    ) -> None:
        self.study = study
        self.studies = studies
        self.predictor = predictor
        self._evaluator = evaluator
        self._announcer = announcer
        self.is_surprising: Callable[[Trial], bool] = lambda trial: False
        self.unmeasured: list[str] = []
        self.trials = [Trial.from_row(row) for row in studies.trials(study)]

    def run(
        self,
        kind: TrialKind,
        config: SchedulerConfig,
        seed: int,
        abort_pause_s: float | None,
        optuna_number: int | None = None,
    ) -> Trial:
        """The result of the config on the seed's traffic, from the store when it is there."""
        known = self.known(config, seed, abort_pause_s)
        if known is not None:
            return known
        trial = self._run_valid(kind, config, seed, abort_pause_s, optuna_number)
        if not _is_suspect(trial) and not self.is_surprising(trial):
            return trial
        why = f"a stream paused {trial.worst_pause_s:.2f} s, far beyond what is expected of this config"
        if trial.predicted_worst_pause_s:
            why += f" ({trial.predicted_worst_pause_s:.2f} s was simulated)"
        self._announcer.warn(f"{why}; running it again")
        self.set_aside(trial, why)
        return self._run_valid(kind, config, seed, abort_pause_s, optuna_number)

    def refresh(self) -> None:
        """Takes in what other processes have done for the study; their running trials too."""
        self.trials = [Trial.from_row(row) for row in self.studies.trials(self.study)]

    def await_others(self) -> None:
        """Waits until nobody runs a trial of the study, and takes in what came of them."""
        while self.studies.num_running(self.study):
            time.sleep(_POLL_S)
        self.refresh()

    def repeat(
        self, kind: TrialKind, config: SchedulerConfig, seed: int, abort_pause_s: float | None
    ) -> Trial:
        """A run of its own, whether or not there is one like it already."""
        return self._run_valid(kind, config, seed, abort_pause_s, None)

    def _run_valid(
        self,
        kind: TrialKind,
        config: SchedulerConfig,
        seed: int,
        abort_pause_s: float | None,
        optuna_number: int | None,
    ) -> Trial:
        """A run that the client did not spoil, if one of a few attempts is."""
        for attempt in range(MAX_RERUNS + 1):
            trial, mend = self._run_once(kind, config, seed, abort_pause_s, attempt, optuna_number)
            if trial.status is not TrialStatus.INVALID:
                return trial
            if attempt < MAX_RERUNS:
                self._announcer.warn(f"the load client spoiled a run ({trial.problems}); running it again")
        self.unmeasured.append(f"{trial.problems}; {mend}")
        self._announcer.warn(
            f"{describe(config)} cannot be measured on this host at this load, {MAX_RERUNS + 1} runs were "
            f"spoiled ({self.unmeasured[-1]})"
        )
        return trial

    def set_aside(self, trial: Trial, why: str) -> None:
        """The run stays in the store and counts no more."""
        self.trials.remove(trial)
        self.studies.mark_suspect(self.study, trial.number, why)

    def known(self, config: SchedulerConfig, seed: int, abort_pause_s: float | None) -> Trial | None:
        """A stored result that says as much as a run would now."""
        for trial in self.trials:
            if trial.config != config or trial.seed != seed:
                continue
            if trial.is_complete or (trial.is_bound and _exceeds(trial, abort_pause_s)):
                return trial
        return None

    def typical_run_s(self, default_s: float) -> float:
        """How long a run takes that is not stopped early: the latest one tells, whatever held up others."""
        whole = [trial.elapsed_s for trial in self.trials if trial.is_complete]
        return whole[-1] if whole else default_s

    def _run_once(
        self,
        kind: TrialKind,
        config: SchedulerConfig,
        seed: int,
        abort_pause_s: float | None,
        attempt: int,
        optuna_number: int | None,
    ) -> tuple[Trial, str]:
        """A run, and what would keep the client from spoiling it when it did."""
        row = self.studies.start_trial(
            self.study, kind, config, seed, attempt=attempt, optuna_number=optuna_number,
            **self._predicted(config, seed),
        )  # fmt: skip
        measured = self._measure(row, config, seed, abort_pause_s)
        self.studies.end_trial(row, measured, self.study.slo_pause_s)
        trial = Trial.from_row(row)
        self.trials.append(trial)
        return trial, measured.mend

    def _measure(
        self, row: TrialRow, config: SchedulerConfig, seed: int, abort_pause_s: float | None
    ) -> Measurement:
        try:
            return self._evaluator.evaluate(config, seed, abort_pause_s)
        except BaseException:
            self.studies.mark_lost(row)
            raise

    def _predicted(self, config: SchedulerConfig, seed: int) -> dict[str, float | None]:
        if self.predictor is None:
            return {}
        summary = self.predictor.evaluate(config, seed, None).summary
        if summary is None:
            return {}
        return {
            "predicted_worst_pause_s": summary.worst_pause_s,
            "predicted_long_ttft_s": finite(summary.long_ttft_p95_s),
        }


def _is_suspect(trial: Trial) -> bool:
    """Stopped by a pause that the config alone does not explain: something held up the whole machine."""
    predicted, paused = trial.predicted_worst_pause_s, trial.worst_pause_s
    return bool(trial.is_bound and predicted and paused and paused > _SUSPECT_RATIO * predicted)


def _exceeds(trial: Trial, limit_s: float | None) -> bool:
    return limit_s is not None and trial.worst_pause_s is not None and trial.worst_pause_s >= limit_s


def relative_error(pairs: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Median of |predicted ÷ measured − 1|; None without a pair."""
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs if predicted and measured]
    return median(errors) if errors else None
