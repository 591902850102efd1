"""The `tuner show` command; reads while a study is being written."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence, Set
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from engine.core.config import parse_config
from tuner.paths import locate_database
from tuner.reporting.findings import so_far, summary_of
from tuner.reporting.report import verdict_lines
from tuner.reporting.terminal import in_seconds
from tuner.reporting.text_plot import Mark, text_plot
from tuner.search.best import improvements
from tuner.search_space import describe
from tuner.store.database import open_to_read
from tuner.store.models import PredictionRow, StudyRow, TrialKind, TrialRow, TrialStatus
from tuner.store.studies import Studies
from tuner.trials import Trial

_SYMBOLS = {TrialKind.BASELINE: "■", TrialKind.RULE: "◆", TrialKind.SEARCH: "●", TrialKind.CONFIRM: "☆"}
_LEGEND = "· simulated  ● live  ◆ rule of thumb  ■ chunking off  ☆ confirmation  ★ winner  ┊ SLO"


def run(arguments: argparse.Namespace) -> int:
    """Prints all studies, or one study's trials. Raises: TunerError."""
    engine = open_to_read(locate_database(arguments.db))
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
        table.add_row(
            *map(escape, (study.name, slo, study.profile, study.model, study.status, winner, updated))
        )
    _print(table)


def _show_study(studies: Studies, study: StudyRow, as_json: bool) -> None:
    trials = studies.trials(study)
    if as_json:
        applies = [row.model_dump(exclude={"id", "study_id"}) for row in studies.applies(study)]
        answer = _study(study) | {"trials": [_trial(trial) for trial in trials], "applies": applies}
        print(json.dumps(answer, allow_nan=False))
        return
    seen = [Trial.from_row(row) for row in trials]
    result = study.result or so_far(study.slo_pause_s, study.seed, seen)
    about = f"{study.model} · profile {study.profile} · SLO {study.slo_pause_s:g} s"
    print(f"{study.name} ({study.status}) · {about}\n")
    print("\n".join(verdict_lines(result)), end="\n\n")
    best = improvements(seen, study.slo_pause_s, study.seed)
    _print(_history(trials, study.slo_pause_s, {trial.number for trial in best}))
    plot = _front(seen, studies.predictions(study), study)
    if plot:
        print("\n".join(["", *plot]))
    for row in studies.applies(study):
        print(f"applied {row.applied_at} to {row.url} as generation {row.generation}: {row.verdict}")


# -- the trials --------------------------------------------------------------------------------------------


def _history(trials: Sequence[TrialRow], slo_pause_s: float, best: Set[int]) -> Table:
    """Every run in order.

    Args:
        best: numbers of the runs that were the best till then.
    """
    table = _table(
        "run", "why", "config", "long TTFT", "worst pause", "refused", "predicted", "best", "status"
    )
    for trial in trials:
        table.add_row(*map(escape, _cells(trial, slo_pause_s, trial.number in best)))
    return table


def _cells(trial: TrialRow, slo_pause_s: float, is_best: bool) -> list[str]:
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
        "★" if is_best else "",
        trial.status.value + (f": {trial.problems}" if trial.problems else ""),
    ]


def _front(trials: Sequence[Trial], predictions: Sequence[PredictionRow], study: StudyRow) -> list[str]:
    """Long TTFT against worst pause. Runs that were stopped early have no TTFT and no mark."""
    known = [(p.worst_pause_s, p.long_ttft_p95_s, "·") for p in predictions]
    whole = [trial for trial in trials if trial.is_complete]
    known += [(t.worst_pause_s, t.long_ttft_p95_s, _SYMBOLS.get(t.kind, "●")) for t in whole]
    if winner := study.result.get("winner"):
        known.append((winner["worst_pause_s"], winner["long_ttft_p95_s"], "★"))
    marks = [Mark(pause, ttft, symbol) for pause, ttft, symbol in known if pause and ttft]
    drawn = text_plot(marks, limit_x=study.slo_pause_s, titles=("worst pause", "long TTFT"))
    stopped = sum(trial.is_bound for trial in trials)
    left_out = f"  ({stopped} stopped early: no TTFT)" if stopped else ""
    return [*drawn, f"{_LEGEND}{left_out}"] if drawn else []


# -- output ------------------------------------------------------------------------------------------------


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
