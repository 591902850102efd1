"""What is read from and written to the database. Every write is one short transaction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Engine, func
from sqlmodel import Session, SQLModel, col, select

from engine.core.config import SchedulerConfig
from engine.core.quantiles import nearest_rank
from engine.core.records import RequestRecord
from engine.core.report import TrialSummary, is_long, pauses, scored_ttft, ttft, worst_pause
from tuner.errors import StudyError
from tuner.evaluators import Measurement
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
from tuner.timeline import RunTimeline, timeline_of

Row = TypeVar("Row", bound=SQLModel)


def now() -> str:
    """The time of day as it is stored."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def finite(value: float | None) -> float | None:
    """A database and JSON hold no infinity: None stands for it."""
    return value if value is not None and math.isfinite(value) else None


class Studies:
    """All studies of one database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

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
            known = ", ".join(study.name for study in self.all()) or "none yet"
            raise StudyError(f"there is no study {name or 'at all'}; known studies: {known}")
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
        return self._save(
            TrialRow(
                study_id=study.id,
                number=self._next_number(study),
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
        trial.status = _status(measured)
        trial.elapsed_s = measured.elapsed_s
        trial.generation = measured.generation
        trial.problems = measured.crash or "; ".join(measured.problems)
        if measured.summary is not None:
            _put_summary(trial, measured.summary)
            trial.summary |= {"long_ttfts_s": _long_ttfts(measured)}
        with self._session() as session:
            session.add(trial)
            session.add_all(_request_row(trial, record, slo_pause_s) for record in measured.records)
            if measured.records:
                session.add(_timeline_row(trial, measured))
            session.commit()
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
        """Marks trials that a dead process left running as lost; how many there were."""
        left = [trial for trial in self.trials(study) if trial.status is TrialStatus.RUNNING]
        for trial in left:
            trial.status = TrialStatus.LOST
            trial.problems = "its process ended before the run did"
            self._save(trial)
        return len(left)

    def mark_lost(self, trial: TrialRow) -> None:
        trial.status, trial.problems = TrialStatus.LOST, "interrupted"
        self._save(trial)

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


def _status(measured: Measurement) -> TrialStatus:
    if measured.crash is not None:
        return TrialStatus.CRASHED
    if measured.summary is None or measured.problems:
        return TrialStatus.INVALID
    return TrialStatus.ABORTED if measured.aborted else TrialStatus.DONE


def _put_summary(trial: TrialRow, summary: TrialSummary) -> None:
    trial.summary = summary.to_mapping()
    trial.worst_pause_s = summary.worst_pause_s
    trial.long_ttft_p95_s = finite(summary.long_ttft_p95_s)
    trial.shed_rate = summary.shed_rate


def _long_ttfts(measured: Measurement) -> list[float | None]:
    """Scored TTFT of every measured long request, None for infinity: what replicates are pooled from."""
    return [
        finite(scored_ttft(record))
        for record in measured.records
        if record.measured and is_long(record, measured.long_prompt_tokens)
    ]


def _request_row(trial: TrialRow, record: RequestRecord, slo_pause_s: float) -> RequestRow:
    assert trial.id is not None
    gaps = pauses(record)
    worst = worst_pause(record)
    return RequestRow(
        trial_id=trial.id,
        request_id=record.id,
        kind=record.kind,
        measured=record.measured,
        outcome=record.outcome.value,
        scheduled_at_s=record.scheduled_at_s,
        sent_at_s=record.sent_at_s,
        ended_at_s=record.ended_at_s,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        output_tokens=record.output_tokens,
        num_events=len(record.events),
        ttft_s=ttft(record),
        worst_pause_s=worst.seconds if worst else None,
        worst_pause_at_s=worst.at_s if worst else None,
        worst_pause_open=worst is not None and worst.is_bound,
        gap_p50_s=nearest_rank([gap.seconds for gap in gaps], 0.5),
        gaps_over_slo=sum(gap.seconds > slo_pause_s for gap in gaps),
        http_status=record.http_status,
        generation=record.generation,
        error=record.error,
        timings=_plain(record.timings),
    )


def _timeline_row(trial: TrialRow, measured: Measurement) -> TimelineRow:
    assert trial.id is not None
    kept = timeline_of(measured.records, measured.steps)
    return TimelineRow(trial_id=trial.id, timeline=kept.to_mapping())


def _plain(timings: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict(timings or {})
