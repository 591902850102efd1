"""Before the first trial: what can be refused is refused here, in one line."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.client.target import first_key, is_address
from loadtests.errors import LoadTestError
from loadtests.selftest.checks import run_selftest
from tuner.announce import Announcer
from tuner.errors import EngineError, StudyError, TunerError
from tuner.paths import DatabaseLocation
from tuner.server.engine_client import EngineClient, Keys
from tuner.store.models import StudyRow, StudyStatus
from tuner.store.studies import Studies, now
from tuner.traffic.offered import Traffic, check_streams, profile_traffic, trace_traffic

OWN_ENGINE = "own"
_BUSY_LOAD = 0.75
_ADJECTIVES = ["calm", "even", "quiet", "steady", "swift", "gentle", "clear", "smooth", "level", "patient"]
_NOUNS = ["river", "brook", "creek", "delta", "tide", "canal", "harbor", "lagoon", "spring", "stream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the command line asks a study to be about.

    Attributes:
        replay: a trace file to replay instead of the profile.
        engine: URL; None starts an own engine with `model`.
        command: the options that make the study anew.
    """

    slo_pause_s: float
    budget_s: float
    profile: str
    replay: str | None
    engine: str | None
    model: str | None
    backend: str
    seed: int
    name: str | None
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a study is done, besides what it is about.

    Attributes:
        num_trials: live search trials at most.
        num_simulated: configs tried in the simulator first; 0 leaves it out.
        selftest: check the load client first.
        workers: load processes of each run.
        fresh: use nothing that earlier studies know.
    """

    location: DatabaseLocation
    num_trials: int
    keys: Keys = Keys()
    num_simulated: int = 300
    replicates: int = 3
    selftest: bool = True
    workers: int = 1
    fresh: bool = False


def find_study(studies: Studies, wanted: Wanted) -> StudyRow | None:
    """The study to go on with; None when a new one is to be made.

    Raises:
        StudyError: it exists and is about something else.
    """
    study = studies.find(wanted.name) if wanted.name else None
    if study is None:
        return None
    traffic = Path(wanted.replay).name if wanted.replay else wanted.profile
    differences = [
        f"{what} {was}, not {asked}"
        for what, was, asked in (
            ("an SLO of", f"{study.slo_pause_s:g} s", f"{wanted.slo_pause_s:g} s"),
            ("the seed", str(study.seed), str(wanted.seed)),
            (
                "the profile",
                study.profile,
                Path(traffic).stem if traffic.endswith((".yaml", ".yml")) else traffic,
            ),
        )
        if was != asked
    ]
    if differences:
        raise StudyError(f"study {study.name} is about {'; '.join(differences)}; choose another --study")
    return study


def load_traffic(wanted: Wanted, study: StudyRow | None) -> Traffic:
    """The traffic to offer, at the scale of the study that is gone on with. Raises: TunerError."""
    scale = study.sizing.get("scale") if study else None
    if wanted.replay:
        traffic = trace_traffic(wanted.replay, wanted.budget_s, scale)
    else:
        traffic = profile_traffic(wanted.profile, wanted.slo_pause_s, wanted.budget_s, scale)
    check_streams(traffic.name, traffic.longest_answer_tokens)
    return traffic


def check_model(study: StudyRow, model: str) -> None:
    """Raises: StudyError: the study was made with another model."""
    if study.model != model:
        raise StudyError(
            f"study {study.name} is about the model {study.model}, not {model}; choose another --study"
        )


def new_study(studies: Studies, wanted: Wanted, traffic: Traffic, model: str) -> StudyRow:
    """A row for a study that begins now."""
    stamp = now()
    return studies.add(
        StudyRow(
            name=wanted.name or _fresh_name(studies),
            slo_pause_s=wanted.slo_pause_s,
            profile=traffic.name,
            model=model,
            engine=wanted.engine or OWN_ENGINE,
            seed=wanted.seed,
            created_at=stamp,
            updated_at=stamp,
            sizing={"command": list(wanted.command)},
        )
    )


def resume(studies: Studies, study: StudyRow) -> StudyRow:
    """Settles what a dead process left, and opens the next round of a finished study."""
    studies.settle(study)
    next_round = study.round + (study.status is StudyStatus.FINISHED)
    return studies.update(study, status=StudyStatus.RUNNING, round=next_round)


def _fresh_name(studies: Studies) -> str:
    """Two words that are easy to type; drawn until nobody has them."""
    rng = random.Random()
    while True:
        name = f"{rng.choice(_ADJECTIVES)}-{rng.choice(_NOUNS)}-{rng.randrange(100, 1000)}"
        if studies.find(name) is None:
            return name


def connect(url: str, keys: Keys) -> EngineClient:
    """A checked connection to somebody's engine. Raises: EngineError."""
    if not is_address(url):
        raise EngineError(f"{url!r} is not an engine's address; write it like http://127.0.0.1:8080")
    client = EngineClient(url, keys)
    try:
        client.check()
    except EngineError:
        client.close()
        raise
    return client


def read_key(path: Path | None, variable: str | None) -> str | None:
    """The first key in a file, else the environment's. Raises: TunerError."""
    if path is None:
        return variable or None
    try:
        key = first_key(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise TunerError(f"cannot read key file {path}: {reason}") from error
    if key is None:
        raise TunerError(f"key file {path} is empty")
    return key


def stored_sizing(study: StudyRow) -> dict[str, Any]:
    """What an earlier run of the study measured; empty when it did not get that far."""
    return study.sizing if study.sizing.get("capacity") else {}


def warn_if_busy(announcer: Announcer) -> None:
    """Two programs that compute at once on a few cores slow each other down many times over."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > _BUSY_LOAD * cores:
        announcer.warn(
            f"this machine is busy already (load {load:.1f} on {cores} cores): what is measured now is "
            "worse than it will be; close other programs for numbers that hold"
        )


def check_load_client(announcer: Announcer) -> None:
    """Raises: TunerError: it is not exact on this machine now."""
    announcer.doing("checking the load client")
    try:
        found = run_selftest()
    except LoadTestError as error:
        raise TunerError(str(error)) from error
    if not found.ok:
        failed = next(check for check in found.checks if not check.ok)
        raise TunerError(
            f"the load client is not exact here now ({failed.name}: {failed.detail}): close other "
            "programs and start again, or leave this check out with --no-selftest"
        )
    error_ms = found.worst_error_s * 1000
    announcer.done("load client checked against scripted streams", f"worst error {error_ms:.1f} ms")
