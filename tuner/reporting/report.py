"""What a study came to: one JSON object for programs, a table and a sentence for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from shlex import quote
from typing import Any

from tuner.reporting.findings import (
    Row,
    outcome_json,
    rows_of,
    sentence_of,
    tested_of,
    ttft_title,
    unmeasured_of,
)
from tuner.search.conclusion import Result
from tuner.server.engine_client import DEFAULT_URL
from tuner.store.models import TrialKind
from tuner.store.rows import finite
from tuner.trials import Outcome, Trial, pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What the result is about.

    Attributes:
        trials: the study's runs.
    """

    study: str
    slo_pause_s: float
    model: str
    profile: str
    db: str
    elapsed_s: float
    trials: Sequence[Trial] = ()


def to_json(subject: Subject, result: Result) -> dict[str, Any]:
    """The object that `--json` prints. A number that does not exist is null, never NaN or infinity."""
    return {
        "study": subject.study,
        "slo_pause_s": subject.slo_pause_s,
        "model": subject.model,
        "profile": subject.profile,
        "confirmed": result.winner is not None,
        "live_trials": result.live_trials,
        "set_aside": result.set_aside,
        "unmeasured": list(result.unmeasured),
        "simulated_trials": result.simulated_trials,
        "baseline": outcome_json(result.baseline),
        "rule_of_thumb": outcome_json(result.rule_of_thumb),
        "winner": outcome_json(result.winner, trial=result.winner_number),
        "winner_beside_baseline": outcome_json(_beside_baseline(subject.trials, result)),
        "keep_current": result.keep_current,
        "claim": None if result.claim is None else asdict(result.claim),
        "smallest_pause": outcome_json(result.smallest),
        "bound": None if result.bound is None else asdict(result.bound),
        "idle_knobs": list(result.idle_knobs),
        "simulator_error": {
            "long_ttft_p95": finite(result.simulator_error_ttft),
            "worst_pause": finite(result.simulator_error_pause),
            "runs": result.simulator_error_runs,
        },
        "elapsed_s": round(subject.elapsed_s, 3),
        "db": subject.db,
    }


def _beside_baseline(trials: Sequence[Trial], result: Result) -> Outcome | None:
    """The winner on the very requests that the baseline met; None when it never ran on them."""
    seeds = {trial.seed for trial in trials if trial.kind is TrialKind.BASELINE}
    config = result.winner.config if result.winner else None
    runs = [trial for trial in trials if trial.is_complete and trial.config == config and trial.seed in seeds]
    return pool(runs) if runs else None


def to_text(subject: Subject, result: Result, engine: str | None = None, db: str | None = None) -> str:
    """The table, the sentence, what was tested, and the next commands.

    Args:
        engine: the URL that was tuned; None when it was an own engine.
        db: as given with `--db`.
    """
    commands = next_commands(subject.study, result.winner, engine, db)
    return "\n".join(verdict_lines(to_json(subject, result)) + commands)


def verdict_lines(stored: Mapping[str, Any]) -> list[str]:
    """The table, the sentence and what was tested, of the object that `to_json` gives."""
    tested = " ".join(tested_of(stored))
    return [*_table(stored), sentence_of(stored), tested, *unmeasured_of(stored)]


def _table(stored: Mapping[str, Any]) -> list[str]:
    """With an empty line after it; nothing when nothing was run."""
    rows = rows_of(stored)
    if not rows:
        return []
    width = max(len(row.name) for row in rows) + 2
    title = ttft_title(stored)
    wide = max(15, len(title))
    header = f"  {'':<{width}}{title:>{wide}}{'worst pause':>15}{'refused':>10}"
    return [header, *(_line(row, width, wide) for row in rows), ""]


def _line(row: Row, width: int, wide: int) -> str:
    numbers = f"{row.ttft:>{wide}}{row.pause:>13} {row.mark}{row.refused:>10}"
    return f"  {row.name:<{width}}{numbers}   {row.note}".rstrip()


def next_commands(study: str, winner: object, engine: str | None, db: str | None) -> list[str]:
    """What to do with the result, as it has to be typed."""
    name, option = quote(study), f" --db {quote(db)}" if db else ""
    apply = f"Put it on your server:   tuner apply {name} --to {engine or DEFAULT_URL}{option}"
    return [
        *([apply] if winner else []),
        f"The whole story:         tuner report {name} --html report.html{option}",
        f"Every trial:             tuner show {name}{option}",
    ]
