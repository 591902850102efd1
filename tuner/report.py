"""What a study came to: one JSON object for programs, a table and a sentence for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.core.quantiles import supported
from tuner.search_space import describe
from tuner.store.studies import finite
from tuner.study import Result
from tuner.terminal import in_seconds
from tuner.trials import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What the result is about."""

    study: str
    slo_pause_s: float
    model: str
    profile: str
    db: str
    elapsed_s: float


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
        "baseline": _outcome(result.baseline),
        "rule_of_thumb": _outcome(result.rule_of_thumb),
        "winner": _outcome(result.winner, trial=result.winner_number),
        "smallest_pause": _outcome(result.smallest),
        "simulator_error": {
            "long_ttft_p95": finite(result.simulator_error_ttft),
            "worst_pause": finite(result.simulator_error_pause),
        },
        "elapsed_s": round(subject.elapsed_s, 3),
        "db": subject.db,
    }


def _outcome(outcome: Outcome | None, **more: Any) -> dict[str, Any] | None:
    if outcome is None:
        return None
    return {
        "config": outcome.config.to_mapping(),
        "long_ttft_p95_s": finite(outcome.long_ttft_p95_s),
        "long_ttft_n": outcome.long_ttft_n,
        "worst_pause_s": finite(outcome.worst_pause_s),
        "worst_pause_is_bound": outcome.is_bound,
        "shed_rate": outcome.shed_rate,
        "replicates": outcome.replicates,
        "requests": outcome.num_requests,
        **more,
    }


def to_text(subject: Subject, result: Result) -> str:
    """The table, the sentence, what was tested, and the next command."""
    lines = [*_table(subject, result), "", _sentence(subject, result), _tested(result), *_unmeasured(result)]
    if result.winner is not None:
        where = f"tuner apply {subject.study} --to http://127.0.0.1:8080"
        lines += [f"Put it on your server:   {where}"]
    lines.append(f"Every trial:             tuner show {subject.study}")
    return "\n".join(lines)


def _table(subject: Subject, result: Result) -> list[str]:
    rows: list[tuple[str, Outcome, str]] = []
    if result.baseline is not None:
        rows.append(("chunking off", result.baseline, ""))
    if result.rule_of_thumb is not None:
        chunk = result.rule_of_thumb.config.prefill_chunk_tokens
        rows.append((f"rule of thumb ({chunk} tokens)", result.rule_of_thumb, ""))
    if result.winner is not None:
        times = f"{result.winner.replicates} confirmations on fresh traffic"
        rows.append((f"winner ({describe(result.winner.config)})", result.winner, times))
    else:
        rows.append((f"smallest pause ({describe(result.smallest.config)})", result.smallest, ""))
    width = max(len(name) for name, _, _ in rows) + 2
    header = f"  {'':<{width}}{_ttft_title(rows):>15}{'worst pause':>15}{'refused':>10}"
    return [header, *(_row(name, width, outcome, note, subject.slo_pause_s) for name, outcome, note in rows)]


def _ttft_title(rows: list[tuple[str, Outcome, str]]) -> str:
    """A percentile is called one only when the samples support it."""
    fewest = min(outcome.long_ttft_n for _, outcome, _ in rows)
    if supported(0.95, fewest):
        return "long TTFT p95"
    return "long TTFT worst" if fewest < 20 else "long TTFT"


def _row(name: str, width: int, outcome: Outcome, note: str, slo_pause_s: float) -> str:
    ttft, pause = in_seconds(outcome.long_ttft_p95_s), in_seconds(outcome.worst_pause_s)
    kept = outcome.worst_pause_s is not None and outcome.worst_pause_s <= slo_pause_s
    bound = "≥ " if outcome.is_bound else ""
    mark = "✓" if kept and not outcome.is_bound else "✗"
    refused = f"{outcome.shed_rate:.0%}" if outcome.shed_rate else "0"
    return f"  {name:<{width}}{ttft:>15}{bound + pause:>13} {mark}{refused:>10}   {note}".rstrip()


def _sentence(subject: Subject, result: Result) -> str:
    if result.winner is None or result.baseline is None:
        return no_config_line(subject.slo_pause_s, result) + "."
    before = result.baseline.worst_pause_s
    was = f" (was {before:.2f} s)" if before is not None else ""
    longer = _longer(result.winner, result.baseline)
    pause = result.winner.worst_pause_s or 0.0
    return f"{longer}; nobody's answer stops for more than {pause:.2f} s{was}."


def _longer(winner: Outcome, baseline: Outcome) -> str:
    if not winner.long_ttft_p95_s or not baseline.long_ttft_p95_s:
        return "The long prompts are answered"
    ratio = winner.long_ttft_p95_s / baseline.long_ttft_p95_s - 1
    if abs(ratio) < 0.01:
        return "The long prompts wait as long as before"
    return f"The long prompts wait {abs(ratio):.0%} {'longer' if ratio > 0 else 'less long'}"


def no_config_line(slo_pause_s: float, result: Result) -> str:
    """Says that nothing keeps the SLO, what can be had, and what that costs."""
    smallest = result.smallest
    if result.baseline is None:
        return (
            f"no config keeps a pause of {slo_pause_s:g} s: a decode step alone takes "
            f"{smallest.worst_pause_s or 0.0:.3f} s here"
        )
    if smallest.worst_pause_s is None:
        return f"no config keeps a pause of {slo_pause_s:g} s: nothing streamed"
    price = smallest.long_ttft_p95_s
    cost = "" if price is None else f", with long prompts waiting {price:.2f} s"
    bound = "at least " if smallest.is_bound else ""
    fresh = " on fresh traffic" if smallest.worst_pause_s <= slo_pause_s else ""
    return (
        f"no config keeps a pause of {slo_pause_s:g} s{fresh}; the smallest pause reached is "
        f"{bound}{smallest.worst_pause_s:.2f} s ({describe(smallest.config)}{cost})"
    )


def _tested(result: Result) -> str:
    shown = result.winner or result.baseline or result.smallest
    each = shown.num_requests // max(1, shown.replicates)
    line = f"Tested: {shown.replicates} × {each} requests after {result.live_trials} live runs."
    if result.set_aside:
        line += (
            f" Set aside: {result.set_aside}, with a pause far beyond its prediction; the run was made again."
        )
    errors = (result.simulator_error_ttft, result.simulator_error_pause)
    if errors[0] is not None and errors[1] is not None:
        line += f" Simulator off by {errors[0]:.0%} (TTFT), {errors[1]:.0%} (pause)."
    return line


def _unmeasured(result: Result) -> list[str]:
    """What was left out, why, and how to have it in; the latest stands for all."""
    if not result.unmeasured:
        return []
    count = len(result.unmeasured)
    what = "1 setting" if count == 1 else f"{count} settings"
    return [f"{what} could not be measured on this host at this load: {result.unmeasured[-1]}."]


def summary_of(stored: Mapping[str, Any]) -> str:
    """One line about a stored result."""
    winner = stored.get("winner")
    if not stored:
        return "no result yet"
    if not winner:
        return "no config keeps the SLO"
    ttft, pause = winner.get("long_ttft_p95_s"), winner.get("worst_pause_s")
    return f"{in_seconds(ttft)} at {in_seconds(pause)}" if pause is not None else in_seconds(ttft)
