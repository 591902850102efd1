"""The `tuner show` command; reads while a study is being written."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from engine.core.config import parse_config
from tuner.findings import summary_of
from tuner.paths import locate_database
from tuner.search_space import describe
from tuner.store.database import open_database
from tuner.store.models import StudyRow, TrialRow, TrialStatus
from tuner.store.studies import Studies
from tuner.terminal import in_seconds


def run(arguments: argparse.Namespace) -> int:
    """Prints all studies, or one study's trials. Raises: TunerError."""
    engine = open_database(locate_database(arguments.db), create=False)
    try:
        studies = Studies(engine)
        if arguments.study is None:
            _show_studies(studies.all(), arguments.json)
        else:
            study = studies.get(arguments.study)
            _show_study(studies, study, arguments.json)
    finally:
        engine.dispose()
    return 0


def _show_studies(studies: list[StudyRow], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"studies": [_study(study) for study in studies]}, allow_nan=False))
        return
    table = _table("study", "SLO", "profile", "model", "status", "winner", "updated (UTC)")
    for study in studies:
        winner = summary_of(study.result)
        slo, updated = f"{study.slo_pause_s:g} s", study.updated_at[:16].replace("T", " ")
        table.add_row(study.name, slo, study.profile, study.model, study.status, winner, updated)
    _print(table)


def _show_study(studies: Studies, study: StudyRow, as_json: bool) -> None:
    trials = studies.trials(study)
    if as_json:
        applies = [row.model_dump(exclude={"id", "study_id"}) for row in studies.applies(study)]
        answer = _study(study) | {"trials": [_trial(trial) for trial in trials], "applies": applies}
        print(json.dumps(answer, allow_nan=False))
        return
    table = _table("trial", "why", "config", "long TTFT", "worst pause", "refused", "simulated", "status")
    for trial in trials:
        table.add_row(*_cells(trial, study.slo_pause_s))
    _print(table)
    print(f"{study.name} ({study.status}): {summary_of(study.result)}")
    for row in studies.applies(study):
        print(f"applied {row.applied_at} to {row.url} as generation {row.generation}: {row.verdict}")


def _cells(trial: TrialRow, slo_pause_s: float) -> list[str]:
    pause = trial.worst_pause_s
    bound = "≥ " if trial.status is TrialStatus.ABORTED else ""
    mark = "" if pause is None else (" ✓" if pause <= slo_pause_s and not bound else " ✗")
    ttft = None if bound else trial.long_ttft_p95_s
    predicted = f"{in_seconds(trial.predicted_long_ttft_s)} / {in_seconds(trial.predicted_worst_pause_s)}"
    return [
        str(trial.number),
        trial.kind.value,
        describe(parse_config(trial.config)),
        in_seconds(ttft),
        f"{bound}{in_seconds(pause)}{mark}",
        "–" if trial.shed_rate is None else f"{trial.shed_rate:.0%}",
        predicted,
        trial.status.value + (f": {trial.problems}" if trial.problems else ""),
    ]


def _study(study: StudyRow) -> dict[str, Any]:
    return study.model_dump(exclude={"id"}, mode="json")


def _trial(trial: TrialRow) -> dict[str, Any]:
    return trial.model_dump(exclude={"id", "study_id"}, mode="json")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _print(table: Table) -> None:
    """Whole lines when piped: a table folded for a terminal that is not there is no use to a program."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table, highlight=False)
