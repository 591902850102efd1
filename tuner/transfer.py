"""What an earlier study of the same model on the same engine spares a new one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engine.core.config import SchedulerConfig, parse_config
from engine.core.errors import ConfigError
from tuner.announce import Announcer
from tuner.evaluation.sizing import Capacity, Probe
from tuner.store.models import StudyRow, StudyStatus
from tuner.store.studies import Studies

_MOST_WINNERS = 3
# A looser SLO's winner pauses too long here; a much tighter one's probes were too short for this one.
_MOST_LOOSER, _MOST_TIGHTER = 1.25, 1.5


@dataclass(frozen=True, slots=True)
class Earlier:
    """What is known already.

    Attributes:
        study: where from.
        measured_in_s: how long it took to measure the capacity there.
        winners: worth a live trial, latest first.
    """

    study: str
    capacity: Capacity
    measured_in_s: float
    winners: tuple[SchedulerConfig, ...]


def find_earlier(studies: Studies, study: StudyRow) -> Earlier | None:
    """What finished studies on other traffic, or with another SLO, know of this one's engine and model."""
    alike = [
        other
        for other in sorted(studies.all(), key=lambda other: other.updated_at, reverse=True)
        if other.name != study.name and other.status is StudyStatus.FINISHED
        if (other.model, other.engine) == (study.model, study.engine)
        if other.slo_pause_s / _MOST_LOOSER <= study.slo_pause_s <= other.slo_pause_s * _MOST_TIGHTER
    ]
    for other in alike:
        capacity = _capacity(other)
        if capacity is not None and not capacity.unexplained:
            measured_in_s = float(other.sizing.get("measured_in_s", 0.0))
            return Earlier(other.name, capacity, measured_in_s, tuple(_winners(alike))[:_MOST_WINNERS])
    return None


def measure_or_reuse(
    earlier: Earlier | None, probe: Probe, slo_pause_s: float, announcer: Announcer
) -> tuple[Capacity, dict[str, Any]]:
    """What the server can do, and what of it is stored with the study. Raises: EngineError."""
    started_s = time.monotonic()
    if earlier is not None and probe.confirms(earlier.capacity):
        capacity, took_s = earlier.capacity, earlier.measured_in_s
        saved_s = max(0.0, took_s - (time.monotonic() - started_s))
        announcer.done(f"measured before, in study {earlier.study}", f"saves {saved_s:.0f} s")
    else:
        if earlier is not None:
            announcer.warn(f"this server is not as study {earlier.study} measured it; measuring it anew")
        started_s = time.monotonic()
        capacity = probe.measure(slo_pause_s)
        took_s = time.monotonic() - started_s
    winners = earlier.winners if earlier is not None else ()
    if winners:
        announcer.done(f"{len(winners)} configs of earlier studies", "are tried first where they fit")
    tried = [config.to_mapping() for config in winners]
    return capacity, {"capacity": capacity.to_mapping(), "measured_in_s": took_s, "try_first": tried}


def _capacity(study: StudyRow) -> Capacity | None:
    try:
        return Capacity.from_mapping(study.sizing["capacity"])
    except (KeyError, TypeError):  # none was measured, or by an older tuner
        return None


def _winners(alike: list[StudyRow]) -> Iterator[SchedulerConfig]:
    seen: set[SchedulerConfig] = set()
    for study in alike:
        try:
            config = parse_config((study.result.get("winner") or {})["config"])
        except (KeyError, ConfigError):
            continue
        if config not in seen:
            seen.add(config)
            yield config
