"""The tables of `evenflow.db`. Times of day are ISO 8601 in UTC; other times are seconds."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, Column, UniqueConstraint
from sqlmodel import Field, SQLModel

SCHEMA_VERSION = 2


class TrialKind(StrEnum):
    """Why a trial was run."""

    BASELINE = "baseline"
    RULE = "rule"
    SEARCH = "search"
    CONTROL = "control"  # an earlier run repeated, to see whether the machine has changed
    CONFIRM = "confirm"


class TrialStatus(StrEnum):
    """How a trial ended."""

    RUNNING = "running"
    DONE = "done"
    ABORTED = "aborted"  # stopped early: its worst pause is a lower bound
    CRASHED = "crashed"
    INVALID = "invalid"  # the client spoiled it
    SUSPECT = "suspect"  # paused far beyond its prediction, and was run again
    LOST = "lost"  # its process ended before it did


class StudyStatus(StrEnum):
    """How far a study has come."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FINISHED = "finished"


def _json() -> Any:
    return Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


class Schema(SQLModel, table=True):
    """One row: which version of these tables the database holds."""

    __tablename__ = "evenflow_schema"

    version: int = Field(primary_key=True)


class StudyRow(SQLModel, table=True):
    """A search for one SLO, profile and model.

    Attributes:
        sizing: what the target was measured to do (the `loadtests` sizing, stall floor and fitted costs), and
            the `command` that asked for it.
        round: how often the study came to its end; fresh seeds for confirmations follow from it.
        result: the object `--json` prints, once there is one.
    """

    __tablename__ = "studies"

    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True, index=True)
    slo_pause_s: float
    profile: str
    model: str
    engine: str
    seed: int
    status: StudyStatus = StudyStatus.RUNNING
    round: int = 0
    created_at: str
    updated_at: str
    sizing: dict[str, Any] = _json()
    result: dict[str, Any] = _json()


class TrialRow(SQLModel, table=True):
    """One live run of one config.

    Attributes:
        number: counts a study's trials from 0.
        optuna_number: the search's own number, for trials it asked for.
        attempt: 0, or how often the same run had been spoiled before.
        summary: every number of `engine.core.report.TrialSummary`.
        predicted_worst_pause_s, predicted_long_ttft_s: the simulator's, when it ran.
    """

    __tablename__ = "trials"
    __table_args__ = (UniqueConstraint("study_id", "number"),)

    id: int | None = Field(default=None, primary_key=True)
    study_id: int = Field(foreign_key="studies.id", index=True)
    number: int
    kind: TrialKind
    status: TrialStatus = TrialStatus.RUNNING
    optuna_number: int | None = None
    round: int = 0
    seed: int
    attempt: int = 0
    config: dict[str, Any] = _json()
    generation: int | None = None
    started_at: str
    elapsed_s: float = 0.0
    worst_pause_s: float | None = None
    long_ttft_p95_s: float | None = None
    shed_rate: float | None = None
    predicted_worst_pause_s: float | None = None
    predicted_long_ttft_s: float | None = None
    problems: str = ""
    summary: dict[str, Any] = _json()


class PredictionRow(SQLModel, table=True):
    """What the simulator said of a config that may never have run live.

    Attributes:
        aborted: its simulation was stopped at a pause beyond the SLO; the pause is a lower bound.
    """

    __tablename__ = "predictions"

    id: int | None = Field(default=None, primary_key=True)
    study_id: int = Field(foreign_key="studies.id", index=True)
    round: int = 0
    config: dict[str, Any] = _json()
    worst_pause_s: float | None = None
    long_ttft_p95_s: float | None = None
    aborted: bool = False


class RequestRow(SQLModel, table=True):
    """One request of a live trial. Instants are seconds from the run's start.

    Attributes:
        worst_pause_s: a lower bound when `worst_pause_open`.
        gaps_over_slo: pauses longer than the study's SLO.
        worst_pause_cause: what the engine says the pause was spent on.
    """

    __tablename__ = "requests"

    id: int | None = Field(default=None, primary_key=True)
    trial_id: int = Field(foreign_key="trials.id", index=True)
    request_id: str
    kind: str = ""
    measured: bool = True
    outcome: str
    scheduled_at_s: float
    sent_at_s: float | None = None
    ended_at_s: float
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    output_tokens: int = 0
    num_events: int = 0
    ttft_s: float | None = None
    worst_pause_s: float | None = None
    worst_pause_at_s: float | None = None
    worst_pause_open: bool = False
    gap_p50_s: float | None = None
    gaps_over_slo: int = 0
    http_status: int | None = None
    generation: int | None = None
    error: str | None = None
    timings: dict[str, Any] = _json()


class TimelineRow(SQLModel, table=True):
    """When a live trial's tokens came and its prompts were read: what its picture is drawn from.

    Attributes:
        timeline: `tuner.timeline.RunTimeline` as a mapping; bounded.
    """

    __tablename__ = "timelines"

    trial_id: int = Field(primary_key=True, foreign_key="trials.id")
    timeline: dict[str, Any] = _json()


class ApplyRow(SQLModel, table=True):
    """A config put on a server by `apply`, and what became of it.

    Attributes:
        verdict: `applied` (not watched), `kept`, `taken back`, `undecided`, `no data` or `overtaken`.
        evidence: counts behind the verdict.
    """

    __tablename__ = "applies"

    id: int | None = Field(default=None, primary_key=True)
    study_id: int = Field(foreign_key="studies.id", index=True)
    trial_id: int | None = Field(default=None, foreign_key="trials.id")
    url: str
    applied_at: str
    generation: int
    previous_generation: int
    config: dict[str, Any] = _json()
    verdict: str = "applied"
    evidence: dict[str, Any] = _json()
