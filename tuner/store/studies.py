"""What is read from and written to the database. Every write is one short transaction."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Engine, func
from sqlmodel import Session, SQLModel, col, select

from engine.core.config import SchedulerConfig
from engine.core.report import TrialSummary
from tuner.errors import StudyError
from tuner.evaluation.evaluators import Measurement
from tuner.store.claims import Alone, Claims
from tuner.store.models import (
    ApplyRow,
    PredictionRow,
    RequestRow,
    StudyRow,
    StudyStatus,
    TimelineRow,
    TrialKind,
    TrialRow,
    TrialStatus,
)
from tuner.store.rows import finite, put_measured, request_row, timeline_row
from tuner.timeline import RunTimeline

_RETRY_S = 0.02

Row = TypeVar("Row", bound=SQLModel)


def now() -> str:
    """The time of day as it is stored."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Studies:
    """All studies of one database.

    Args:
        claims: tells running trials of other processes from those of dead ones; None works alone.
    """

    def __init__(self, engine: Engine, claims: Claims | None = None) -> None:
        self._engine = engine
        self._claims = claims or Alone()

    def all(self) -> list[StudyRow]:
        """Oldest first."""
        with self._session() as session:
            return list(session.exec(select(StudyRow).order_by(col(StudyRow.id))))

    def find(self, name: str) -> StudyRow | None:
        with self._session() as session:
            return session.exec(select(StudyRow).where(StudyRow.name == name)).first()

    def get(self, name: str | None) -> StudyRow:
        """The named study, or the one that was worked on last.

        Raises:
            StudyError: there is none.
        """
        with self._session() as session:
            query = select(StudyRow).order_by(col(StudyRow.updated_at).desc(), col(StudyRow.id).desc())
            found = session.exec(query if name is None else query.where(StudyRow.name == name)).first()
        if found is None:
            known = ", ".join(study.name for study in self.all())
            what = f"there is no study{f' {name}' if name else ''}"
            raise StudyError(
                f"{what}; known studies: {known}" if known else f"{what}; run tuner optimize first"
            )
        return found

    def add(self, study: StudyRow) -> StudyRow:
        return self._save(study)

    def update(self, study: StudyRow, **values: Any) -> StudyRow:
        """Writes the named columns."""
        for name, value in {**values, "updated_at": now()}.items():
            setattr(study, name, value)
        return self._save(study)

    def trials(self, study: StudyRow) -> list[TrialRow]:
        """Its trials in order."""
        query = select(TrialRow).where(TrialRow.study_id == study.id).order_by(col(TrialRow.number))
        with self._session() as session:
            return list(session.exec(query))

    def predictions(self, study: StudyRow) -> list[PredictionRow]:
        """Everything the simulator said for it."""
        query = select(PredictionRow).where(PredictionRow.study_id == study.id)
        with self._session() as session:
            return list(session.exec(query))

    def num_predictions(self, study: StudyRow) -> int:
        """Configs simulated in the study's current round."""
        query = select(func.count(col(PredictionRow.id))).where(
            PredictionRow.study_id == study.id, PredictionRow.round == study.round
        )
        with self._session() as session:
            return session.exec(query).one()

    def requests(self, trial: TrialRow) -> list[RequestRow]:
        """The requests of a live trial in order of arrival."""
        query = select(RequestRow).where(RequestRow.trial_id == trial.id)
        with self._session() as session:
            return list(session.exec(query.order_by(col(RequestRow.scheduled_at_s))))

    def start_trial(
        self,
        study: StudyRow,
        kind: TrialKind,
        config: SchedulerConfig,
        seed: int,
        **values: Any,
    ) -> TrialRow:
        """A row for a run that begins now."""
        assert study.id is not None
        number = self._claim_number(study)
        return self._save(
            TrialRow(
                study_id=study.id,
                number=number,
                kind=kind,
                round=study.round,
                seed=seed,
                config=config.to_mapping(),
                started_at=now(),
                **values,
            )
        )

    def end_trial(self, trial: TrialRow, measured: Measurement, slo_pause_s: float) -> TrialRow:
        """Writes what came of the run, and every request of it."""
        put_measured(trial, measured)
        with self._session() as session:
            session.add(trial)
            session.add_all(request_row(trial, record, slo_pause_s) for record in measured.records)
            if measured.records:
                session.add(timeline_row(trial, measured))
            session.commit()
        self._claims.release(_claim(trial))
        return trial

    def timeline(self, trial: TrialRow) -> RunTimeline | None:
        """When the trial's tokens came; None for a run that has none."""
        with self._session() as session:
            row = session.get(TimelineRow, trial.id)
        return RunTimeline.from_mapping(row.timeline) if row else None

    def add_predictions(
        self, study: StudyRow, results: Sequence[tuple[SchedulerConfig, TrialSummary, bool]]
    ) -> None:
        """Writes (config, what the simulator predicted, whether it was aborted), in one transaction."""
        assert study.id is not None
        rows = [
            PredictionRow(
                study_id=study.id,
                round=study.round,
                config=config.to_mapping(),
                worst_pause_s=summary.worst_pause_s,
                long_ttft_p95_s=None if aborted else finite(summary.long_ttft_p95_s),
                aborted=aborted,
            )
            for config, summary, aborted in results
        ]
        with self._session() as session:
            session.add_all(rows)
            session.commit()

    def settle(self, study: StudyRow) -> int:
        """Marks trials that dead processes left running as lost; how many there were."""
        running = [trial for trial in self.trials(study) if trial.status is TrialStatus.RUNNING]
        left = [trial for trial in running if self._claims.take(_claim(trial))]
        for trial in left:
            self.mark_lost(trial, "its process ended before the run did")
        return len(left)

    def num_running(self, study: StudyRow) -> int:
        """Its trials that run now, here or elsewhere."""
        self.settle(study)
        return sum(trial.status is TrialStatus.RUNNING for trial in self.trials(study))

    def mark_lost(self, trial: TrialRow, why: str = "interrupted") -> None:
        trial.status, trial.problems = TrialStatus.LOST, why
        self._save(trial)
        self._claims.release(_claim(trial))

    def mark_suspect(self, study: StudyRow, number: int, why: str) -> None:
        """Keeps a run without scoring it, because it was made again."""
        query = select(TrialRow).where(TrialRow.study_id == study.id, TrialRow.number == number)
        with self._session() as session:
            trial = session.exec(query).one()
            trial.status, trial.problems = TrialStatus.SUSPECT, why
            session.add(trial)
            session.commit()

    def add_apply(self, row: ApplyRow) -> ApplyRow:
        return self._save(row)

    def applies(self, study: StudyRow) -> list[ApplyRow]:
        with self._session() as session:
            return list(session.exec(select(ApplyRow).where(ApplyRow.study_id == study.id)))

    def interrupted(self, study: StudyRow) -> None:
        self.update(study, status=StudyStatus.INTERRUPTED)

    def _claim_number(self, study: StudyRow) -> int:
        """The number of a new trial, which nobody else begins or takes for a dead process's."""
        while True:
            number = self._next_number(study)
            claim = _claim_of(study.id, number)
            if self._claims.take(claim):
                if self._next_number(study) == number:
                    return number
                self._claims.release(claim)
            time.sleep(_RETRY_S)

    def _next_number(self, study: StudyRow) -> int:
        query = select(func.max(TrialRow.number)).where(TrialRow.study_id == study.id)
        with self._session() as session:
            last = session.exec(query).one()
        return 0 if last is None else last + 1

    def _save(self, row: Row) -> Row:
        with self._session() as session:
            session.add(row)
            session.commit()
        return row

    def _session(self) -> Session:
        return Session(self._engine, expire_on_commit=False)


def _claim(trial: TrialRow) -> str:
    return _claim_of(trial.study_id, trial.number)


def _claim_of(study_id: int | None, number: int) -> str:
    return f"study-{study_id}.trial-{number}"
