"""Several tuners on one study: one leads and gives the verdict, others make live trials for its search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tuner.errors import EngineError, StoreError, StudyError
from tuner.evaluation.sizing import Capacity
from tuner.paths import DatabaseLocation
from tuner.preflight import Wanted
from tuner.store.claims import Claims
from tuner.store.models import StudyRow, StudyStatus, TrialKind
from tuner.store.studies import Studies

# Two probes of one engine differ by up to a fifth on a busy machine (our measurement, November 2026).
_ALIKE = 1.5
_TYPICAL_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Joined:
    """What a helper ends with: the verdict that the leader gave.

    Attributes:
        result: the object `--json` prints.
    """

    study: str
    result: dict[str, Any]


def leadership(location: DatabaseLocation, study: str | None) -> str | None:
    """What a leader claims; None when nobody else can know of the study yet. A file has one leader: who
    shares a file shares a machine, and two searches that measure at once disturb each other.
    """
    if location.file is not None:
        return "leader"
    return f"study-{quote(study, safe='')}" if study else None


def claim_engine(claims: Claims, url: str) -> None:
    """Raises: EngineError: another tuner of this database works on it."""
    if not claims.take(f"engine-{quote(url, safe='')}"):
        raise EngineError(f"another tuner works on {url}; give this one another --engine")


def study_to_join(studies: Studies, wanted: Wanted, location: DatabaseLocation) -> StudyRow:
    """The study that another process leads. Raises: StoreError: it is not one to be helped with."""
    study = studies.find(wanted.name) if wanted.name else None
    if study is None or study.status is not StudyStatus.RUNNING or wanted.engine is None:
        raise StoreError(
            f"another tuner is writing to {location.shown}; wait for it, choose another --db, or help with "
            "its study: --study NAME and an --engine of its own"
        )
    return study


def is_searching(studies: Studies, study: StudyRow) -> bool:
    """Whether the leader has come to its live search: what it proposes waits in Optuna's storage then."""
    rows = studies.trials(study)
    return any(row.kind is TrialKind.SEARCH and row.round == study.round for row in rows)


def check_alike(study: StudyRow, stored: Capacity, here: Capacity, url: str) -> None:
    """Raises: StudyError: a config's pauses on one of these engines say nothing about the other."""
    reading = here.costs.prefill_seconds(_TYPICAL_TOKENS) / stored.costs.prefill_seconds(_TYPICAL_TOKENS)
    writing = here.stall_floor_s / stored.stall_floor_s if stored.stall_floor_s else 1.0
    for what, ratio in (("read a prompt", reading), ("write a token", writing)):
        if not 1 / _ALIKE <= ratio <= _ALIKE:
            raise StudyError(
                f"{url} takes {ratio:.2g} times as long to {what} as the engine that study {study.name} was "
                "sized on, and so is another kind of machine, or busy; choose another --study"
            )
