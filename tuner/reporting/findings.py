"""What a study's result says, in rows and sentences; of the object that `--json` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.config import SchedulerConfig, parse_config
from tuner.reporting.terminal import in_seconds
from tuner.search.best import best_of, settled
from tuner.search_space import describe
from tuner.store.models import TrialKind
from tuner.store.rows import finite
from tuner.trials import Outcome as Pooled
from tuner.trials import Trial, pool

# Below so many samples the nearest-rank p95 is the largest of them.
_P95_IS_LARGEST = 20
# One config's numbers, as the result holds them.
Outcome = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the verdict's table.

    Attributes:
        keeps: the SLO.
    """

    name: str
    ttft: str
    pause: str
    keeps: bool
    refused: str
    note: str = ""

    @property
    def mark(self) -> str:
        return "✓" if self.keeps else "✗"


def rows_of(result: Mapping[str, Any]) -> list[Row]:
    """Baseline, rule of thumb and winner, or the smallest pause where nothing won."""
    slo_s = result["slo_pause_s"]
    rows = []
    if baseline := result.get("baseline"):
        rows.append(_row("chunking off", baseline, slo_s))
    if rule := result.get("rule_of_thumb"):
        rows.append(_row(f"rule of thumb ({rule['config']['prefill_chunk_tokens']} tokens)", rule, slo_s))
    if winner := result.get("winner"):
        fresh = (result.get("claim") or {}).get("num_windows", 1)
        note = f"{winner['replicates']} confirmations on {'fresh' if fresh else 'the same'} traffic"
        rows.append(_row(f"winner ({name_of(winner)})", winner, slo_s, note))
    elif best := result.get("best_so_far"):
        rows.append(_row(f"best so far ({name_of(best)})", best, slo_s, "not confirmed"))
    elif (smallest := result.get("smallest_pause")) and smallest["replicates"]:
        rows.append(_row(f"smallest pause ({name_of(smallest)})", smallest, slo_s))
    return rows


def _row(name: str, outcome: Outcome, slo_s: float, note: str = "") -> Row:
    pause, is_bound = outcome["worst_pause_s"], outcome.get("worst_pause_is_bound", False)
    return Row(
        name=name,
        ttft=in_seconds(outcome["long_ttft_p95_s"]),
        pause=("≥ " if is_bound else "") + in_seconds(pause),
        keeps=pause is not None and pause <= slo_s and not is_bound,
        refused=f"{outcome['shed_rate']:.0%}" if outcome["shed_rate"] else "0",
        note=note,
    )


def name_of(outcome: Outcome) -> str:
    """The config in a few words."""
    return describe(config_of(outcome))


def config_of(outcome: Outcome) -> SchedulerConfig:
    return parse_config(outcome["config"])


def ttft_title(result: Mapping[str, Any]) -> str:
    """The p95 of few samples is their largest, and called so."""
    counted = [o["long_ttft_n"] for o in _shown(result) if o.get("long_ttft_n")]
    if not counted or max(counted) < _P95_IS_LARGEST:
        return "long TTFT worst"
    fewest, most = min(counted), max(counted)
    return f"long TTFT p95 (n = {fewest})" if fewest == most else f"long TTFT p95 (n = {fewest} to {most})"


def _shown(result: Mapping[str, Any]) -> list[Outcome]:
    """Whose numbers the rows are."""
    found = result.get("winner") or result.get("best_so_far") or result.get("smallest_pause")
    return [o for o in (result.get("baseline"), result.get("rule_of_thumb"), found) if o]


def sentence_of(result: Mapping[str, Any]) -> str:
    """What was found, in one sentence."""
    if result.get("so_far"):
        return _so_far_sentence(result)
    winner, baseline = result.get("winner"), result.get("baseline")
    if not winner or not baseline:
        line = no_config_line(result)
        return line[0].upper() + line[1:] + "."
    before = baseline["worst_pause_s"]
    was = f" (was {before:.2f} s)" if before is not None else ""
    pause = winner["worst_pause_s"] or 0.0
    kept = (
        "Keep what you have: nothing found gains on it beyond noise. " if result.get("keep_current") else ""
    )
    return f"{kept}{_longer(result)}; nobody's answer stopped for more than {pause:.2f} s{was}."


def _longer(result: Mapping[str, Any]) -> str:
    """The winner against the baseline: by runs of both on the same requests, if there are such."""
    if result["winner"]["config"] == result["baseline"]["config"]:
        return "Chunking off keeps the SLO on this traffic"
    beside = result.get("winner_beside_baseline")
    if not beside and not (result.get("claim") or {}).get("num_windows", 1):
        beside = result["winner"]  # all runs met the same
    after = (beside or result["winner"])["long_ttft_p95_s"]
    before = result["baseline"]["long_ttft_p95_s"]
    if not after or not before:
        return "The long prompts are answered"
    which = "on the same requests" if beside else "though on other requests of the same kind"
    ratio = after / before - 1
    if abs(ratio) < 0.01:
        return f"The long prompts wait as long as before, {which}"
    return f"The long prompts wait {abs(ratio):.0%} {'longer' if ratio > 0 else 'less long'}, {which}"


def no_config_line(result: Mapping[str, Any]) -> str:
    """Says that nothing keeps the SLO, what can be had, and what that costs."""
    head, smallest = f"no config keeps a pause of {result['slo_pause_s']:g} s", result["smallest_pause"]
    pause, price = smallest["worst_pause_s"], smallest["long_ttft_p95_s"]
    bound = result.get("bound") or {}
    why = f": {bound['reason']}; to have it, {bound['help']}" if bound else ""
    if not result.get("baseline"):
        return f"{head}{why or f': a decode step alone takes {pause or 0.0:.3f} s here'}"
    if pause is None:
        return f"{head}: nothing streamed"
    cost = "" if price is None else f", with long prompts waiting {price:.2f} s"
    again = " in every confirmation" if pause <= result["slo_pause_s"] else ""
    least = "at least " if smallest.get("worst_pause_is_bound") else ""
    reached = f"the smallest pause reached is {least}{pause:.2f} s ({name_of(smallest)}{cost})"
    return f"{head}{again}; {reached}{why}"


def tested_of(result: Mapping[str, Any]) -> list[str]:
    """What the claim stands on, and what was left out of it: a sentence each."""
    if result.get("so_far"):
        runs = result["live_trials"]
        return [f"{runs} live run{' has' if runs == 1 else 's have'} ended so far that count."]
    shown = result.get("winner") or result.get("baseline") or result["smallest_pause"]
    if not shown["replicates"]:
        return ["Nothing was tested: what the server's steps take alone rules it out."]
    num, runs = shown["requests"], shown["replicates"]
    tested = f"{num} requests in {runs} runs" if num % runs else f"{runs} × {num // runs} requests"
    said = [f"Tested: {tested}; {result['live_trials']} live runs count in all."]
    claim = result.get("claim")
    if claim and claim.get("num_windows", 1):
        said.append("The rows above the winner's are one run each, of other requests of the same kind.")
    if claim:
        said += _claimed(claim, result["slo_pause_s"])
    if aside := result.get("set_aside"):
        said.append(
            f"Set aside: {aside}, with a pause far beyond what was expected or of a machine that has changed."
        )
    errors = result.get("simulator_error") or {}
    ttft, pause = errors.get("long_ttft_p95"), errors.get("worst_pause")
    if ttft is not None and pause is not None:
        runs = errors.get("runs")  # a result from before it was kept does not say
        of_runs = f": median of {runs} run{'' if runs == 1 else 's'}" if runs else ""
        said.append(f"Simulator off by {ttft:.0%} (TTFT), {pause:.0%} (pause){of_runs}.")
    return said


def _claimed(claim: Mapping[str, Any], slo_s: float) -> list[str]:
    """What the confirmation proves, and what weakens it."""
    seen = (
        f"{_played(claim)}, none of {claim['num_streams']} streams paused longer than {slo_s:g} s, the "
        f"longest {claim['longest_pause_s']:.2f} s"
    )
    if accidents := claim.get("num_accidents"):
        runs = "another run" if accidents == 1 else f"{accidents} other runs"
        seen += f"; in {runs}, set aside as an accident, one paused {claim['longest_accident_s']:.2f} s"
    said = [f"{seen}{_bounded(claim)}."]
    if claim.get("narrow"):
        said.append("It keeps the SLO narrowly: by how much runs differ here, a later one may not.")
    return said


def _bounded(claim: Mapping[str, Any]) -> str:
    """What follows for streams to come, and by which method; nothing without a fresh window."""
    if not claim.get("num_windows", 1):
        return ", which says nothing certain of other requests"
    terms = ["exact binomial bound", "streams taken as independent"]
    if spoiled := claim.get("num_accident_streams"):
        terms.append("1 stream" if spoiled == 1 else f"all {spoiled} streams")
        terms[-1] += " of what was set aside counted as beyond it"
    elif claim.get("num_accidents"):
        terms.append("without what was set aside")  # a result from before it was counted
    if (candidates := claim.get("num_candidates", 1)) > 1:
        terms.append(f"for the {candidates} configs that were tried on it")
    return (
        f": with 95 % confidence at most {claim['most_beyond']:.1%} of such streams do ({', '.join(terms)})"
    )


def _played(claim: Mapping[str, Any]) -> str:
    """What traffic it was."""
    windows, runs = claim.get("num_windows", claim["num_runs"]), claim["num_runs"]
    if not windows:
        return f"On the very requests that were searched on, {runs} times over"
    if windows < runs:
        some = "1 window" if windows == 1 else f"{windows} windows"
        return f"On {some} of traffic that the search had not seen, in {runs} runs"
    return "On traffic that the search had not seen"


def unmeasured_of(result: Mapping[str, Any]) -> list[str]:
    """What was left out, why, and how to have it in; the latest stands for all."""
    reasons = result.get("unmeasured") or []
    if not reasons:
        return []
    what = "1 setting" if len(reasons) == 1 else f"{len(reasons)} settings"
    return [f"{what} could not be measured on this host at this load: {reasons[-1]}."]


def summary_of(result: Mapping[str, Any]) -> str:
    """A stored result in a few words."""
    if not result:
        return "no result yet"
    winner = result.get("winner")
    if not winner:
        return "no config keeps the SLO"
    ttft, pause = in_seconds(winner["long_ttft_p95_s"]), winner["worst_pause_s"]
    return f"{ttft} at {in_seconds(pause)}" if pause is not None else ttft


def so_far(slo_s: float, seed: int, trials: Sequence[Trial]) -> dict[str, Any]:
    """What a study without a verdict has found out, in the shape of a result, with `so_far` true.

    Its `best_so_far` is the cheapest run that kept the SLO, which nothing has confirmed yet.

    Args:
        seed: of the study's own window.
    """
    whole = [trial for trial in trials if trial.is_complete and trial.worst_pause_s is not None]
    baseline = [trial for trial in whole if trial.kind is TrialKind.BASELINE][:1]
    best = best_of(trials, slo_s, seed)
    least = sorted(whole, key=lambda trial: trial.worst_pause_s or 0.0)[:1]
    return {
        "so_far": True,
        "slo_pause_s": slo_s,
        "live_trials": len(settled(trials)),
        "baseline": outcome_json(pool(baseline)) if baseline else None,
        "best_so_far": outcome_json(pool([best])) if best else None,
        "smallest_pause": outcome_json(pool(least)) if least else None,
    }


def _so_far_sentence(result: Mapping[str, Any]) -> str:
    head = "This study has not come to its verdict yet"
    if best := result.get("best_so_far"):
        ttft, pause = in_seconds(best["long_ttft_p95_s"]), in_seconds(best["worst_pause_s"])
        return f"{head}; the best so far is a long TTFT of {ttft} at a worst pause of {pause}, not confirmed."
    if smallest := result.get("smallest_pause"):
        pause = in_seconds(smallest["worst_pause_s"])
        return f"{head}; no run so far keeps a pause of {result['slo_pause_s']:g} s, the smallest is {pause}."
    return f"{head}, and no run has come to its end."


def outcome_json(outcome: Pooled | None, **more: Any) -> dict[str, Any] | None:
    """A config's numbers as the result holds them; null stands for what does not exist or is infinite."""
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
