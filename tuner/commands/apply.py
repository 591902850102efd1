"""The `tuner apply` and `tuner rollback` commands."""

from __future__ import annotations

import argparse
import contextlib
import json
from typing import Any

from rich.console import Console

from engine.core.config import SchedulerConfig, parse_config
from tuner.apply import Applied, Watch
from tuner.errors import EXIT_FAILED, StudyError
from tuner.paths import DatabaseLocation, locate_database
from tuner.preflight import connect
from tuner.search_space import describe
from tuner.server.engine_client import Keys
from tuner.store.database import check_writable, open_database
from tuner.store.models import ApplyRow, StudyRow
from tuner.store.studies import Studies, now
from tuner.verdict import Evidence


def run(arguments: argparse.Namespace, keys: Keys) -> int:
    """Puts a config on a server and watches it. Raises: TunerError."""
    location = locate_database(arguments.db)
    engine = open_database(location, create=False)
    try:
        check_writable(engine, location)
        studies = Studies(engine)
        study = studies.get(arguments.study)
        config, trial_id = _pick(studies, study, arguments.trial)
        with contextlib.closing(connect(arguments.to, keys)) as client:
            console = Console(stderr=True)
            with console.status("") as status:
                watch = Watch(client, study.slo_pause_s)
                why = f"study {study.name}"
                applied = watch.apply(config, arguments.watch, why, lambda e: status.update(_seen(e)))
        _record(studies, study, trial_id, arguments.to, config, applied)
    finally:
        engine.dispose()
    _print(applied, config, arguments)
    return EXIT_FAILED if applied.verdict in ("taken back", "overtaken") else 0


def _pick(studies: Studies, study: StudyRow, number: int | None) -> tuple[SchedulerConfig, int | None]:
    """The trial's config, or the confirmed winner's."""
    winner = study.result.get("winner") if study.result else None
    if number is None:
        if not winner:
            raise StudyError(
                f"study {study.name} has no confirmed winner; name a trial with --trial "
                f"(tuner show {study.name} lists them)"
            )
        number = winner.get("trial")
        if number is None:
            return parse_config(winner["config"]), None
    for trial in studies.trials(study):
        if trial.number == number:
            return parse_config(trial.config), trial.id
    raise StudyError(f"study {study.name} has no trial {number}; tuner show {study.name} lists them")


def _record(
    studies: Studies,
    study: StudyRow,
    trial_id: int | None,
    url: str,
    config: SchedulerConfig,
    applied: Applied,
) -> None:
    evidence = applied.evidence
    studies.add_apply(
        ApplyRow(
            study_id=study.id or 0,
            trial_id=trial_id,
            url=url,
            applied_at=now(),
            generation=applied.generation,
            previous_generation=applied.before.generation,
            config=config.to_mapping(),
            verdict=applied.verdict,
            evidence=_evidence(evidence),
        )
    )


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {
        "good_streams": evidence.num_good,
        "bad_streams": evidence.num_bad,
        "worst_pause_s": evidence.worst_pause_s,
        "score": round(evidence.score, 3),
    }


def _seen(evidence: Evidence) -> str:
    return f"{evidence.num_streams} streams, {evidence.num_bad} paused too long, score {evidence.score:+.2f}"


def _print(applied: Applied, config: SchedulerConfig, arguments: argparse.Namespace) -> None:
    line = _line(applied, arguments.watch)
    console = Console(stderr=True)
    if arguments.json:
        answer = {
            "verdict": applied.verdict,
            "url": arguments.to,
            "generation": applied.generation,
            "previous_generation": applied.before.generation,
            "generation_now": applied.now.generation,
            "config": config.to_mapping(),
            "evidence": _evidence(applied.evidence),
        }
        print(json.dumps(answer, allow_nan=False))
    else:
        print(f"{describe(config)} on {arguments.to}, generation {applied.generation}")
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def _line(applied: Applied, watch_s: float) -> str:
    evidence = applied.evidence
    counted = f"{evidence.num_bad} of {evidence.num_streams} streams paused too long"
    worst = f"worst pause {evidence.worst_pause_s:.2f} s"
    now_is = f"generation {applied.now.generation} is in force"
    lines = {
        "applied": "in force; not watched",
        "kept": f"kept: {counted} ({worst})",
        "no data": f"in force; no stream lived wholly in the {watch_s:g} s watched, so nothing was judged",
        "undecided": f"in force: {counted} in {watch_s:g} s ({worst}), too few for a verdict either way",
        "taken back": f"tuner: taken back: {counted} ({worst}); {now_is}",
        "overtaken": "tuner: somebody else changed the config (or the server did, as this watch was held up "
        f"for minutes): {now_is}",
    }
    return lines[applied.verdict]


def put_winner(location: DatabaseLocation, name: str, url: str, keys: Keys) -> str:
    """Puts a study's winner on a server without a watch; says so in a line. Raises: TunerError."""
    engine = open_database(location, create=False)
    try:
        studies = Studies(engine)
        study = studies.get(name)
        config, trial_id = _pick(studies, study, None)
        with contextlib.closing(connect(url, keys)) as client:
            applied = Watch(client, study.slo_pause_s).apply(config, 0.0, f"study {name}")
        _record(studies, study, trial_id, url, config, applied)
    finally:
        engine.dispose()
    return f"{describe(config)} is in force on {url}, generation {applied.generation}"


def run_rollback(arguments: argparse.Namespace, keys: Keys) -> int:
    """Puts the config back that the server had kept before. Raises: TunerError."""
    with contextlib.closing(connect(arguments.to, keys)) as client:
        before = client.config()
        after = client.roll_back(before.generation, "tuner rollback")
    if arguments.json:
        answer = {"generation": after.generation, "config": after.config.to_mapping()}
        print(json.dumps(answer | {"previous_generation": before.generation}, allow_nan=False))
    else:
        print(f"{describe(after.config)} is in force on {arguments.to}, generation {after.generation}")
    return 0
