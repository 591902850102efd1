"""Everything a report is made of, read from the store once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.config import SchedulerConfig
from tuner.evaluation.sizing import Capacity
from tuner.html_report.lanes import LongPrompt, Run, long_prompts, run_of
from tuner.reporting.findings import config_of, so_far
from tuner.search.best import best_of
from tuner.search_space import describe
from tuner.store.models import ApplyRow, PredictionRow, StudyRow, TrialKind, TrialRow
from tuner.store.studies import Studies
from tuner.trials import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A study as it stands in the store.

    Attributes:
        before, after: the runs that are drawn side by side; None where there is no such run, or its token
            times were not kept.
        long_prompts: of those runs, by their number.
        db: as it is shown to people.
    """

    study: StudyRow
    trials: tuple[Trial, ...]
    predictions: tuple[PredictionRow, ...]
    applies: tuple[ApplyRow, ...]
    before: Run | None
    after: Run | None
    long_prompts: Mapping[int, list[LongPrompt]]
    db: str

    @property
    def slo_s(self) -> float:
        return self.study.slo_pause_s

    @property
    def result(self) -> Mapping[str, Any]:
        """What `--json` printed; of a study without a verdict, what it has found so far."""
        return self.study.result or so_far(self.slo_s, self.study.seed, self.trials)

    @property
    def capacity(self) -> Capacity | None:
        """None when the study ended before the server was measured."""
        return capacity_of(self.study)

    @property
    def same_traffic(self) -> bool:
        return self.before is not None and self.after is not None and self.before.seed == self.after.seed


def capacity_of(study: StudyRow) -> Capacity | None:
    stored = study.sizing.get("capacity")
    return Capacity.from_mapping(stored) if stored else None


def gather(studies: Studies, study: StudyRow, db: str) -> Evidence:
    """Reads all of it; the study may be running meanwhile."""
    rows = studies.trials(study)
    trials = tuple(Trial.from_row(row) for row in rows)
    before = _first(trials, lambda trial: trial.kind is TrialKind.BASELINE)
    after = _after(trials, study, before)
    drawn = {
        trial.number: run
        for trial in (before, after)
        if trial and (run := _run(studies, study, rows[trials.index(trial)], trial))
    }
    return Evidence(
        study=study,
        trials=trials,
        predictions=tuple(studies.predictions(study)),
        applies=tuple(studies.applies(study)),
        before=drawn.get(before.number) if before else None,
        after=drawn.get(after.number) if after else None,
        long_prompts={number: _long_prompts(study, rows, run) for number, run in drawn.items()},
        db=db,
    )


def _first(trials: Sequence[Trial], wanted: Any) -> Trial | None:
    return next((trial for trial in trials if trial.is_complete and wanted(trial)), None)


def _after(trials: Sequence[Trial], study: StudyRow, before: Trial | None) -> Trial | None:
    """A run of the config that was found, on the traffic of `before` if there is one."""
    config = _found(trials, study, before)
    if config is None:
        return None
    seed = before.seed if before else study.seed
    runs = [trial for trial in trials if trial.config == config and (trial.is_complete or trial.is_bound)]
    return min(runs, key=lambda trial: (trial.seed != seed, trial.is_bound, trial.number), default=None)


def _found(trials: Sequence[Trial], study: StudyRow, before: Trial | None) -> SchedulerConfig | None:
    """The winner's config; without one that of the best so far, or of the run that paused least; None when
    it is `before` itself.
    """
    if winner := study.result.get("winner"):
        return config_of(winner)
    best = None if study.result else best_of(trials, study.slo_pause_s, study.seed)
    if best is None:
        seen = [t for t in trials if t.is_complete and t is not before and t.worst_pause_s is not None]
        best = min(seen, key=lambda trial: trial.worst_pause_s or 0.0, default=None)
    return None if best is None or best is before else best.config


def _run(studies: Studies, study: StudyRow, row: TrialRow, trial: Trial) -> Run | None:
    timeline = studies.timeline(row)
    if timeline is None:
        return None
    name = describe(trial.config)
    return run_of(trial.number, name, trial.seed, studies.requests(row), timeline, study.slo_pause_s)


def _long_prompts(study: StudyRow, rows: Sequence[TrialRow], run: Run) -> list[LongPrompt]:
    capacity = capacity_of(study)
    summary = next(row.summary for row in rows if row.number == run.number)
    if capacity is None:
        return []
    alone_s = capacity.costs.prefill_seconds
    return long_prompts(run, summary.get("long_ttft_n", 0), lambda n: alone_s(n), capacity.stall_floor_s)
