"""The report's sections, top to bottom."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from shlex import quote

from engine.core.quantiles import nearest_rank
from tuner.html_report.evidence import Evidence
from tuner.html_report.figures import KINDS, Figure, Table, ttft
from tuner.html_report.lanes import LongPrompt, Run, view_of
from tuner.html_report.lanes_figure import lanes_figure
from tuner.html_report.markup import commands, details, pair, paragraph, section, table, text
from tuner.preflight import OWN_ENGINE
from tuner.reporting.findings import config_of, rows_of, sentence_of, tested_of, ttft_title, unmeasured_of
from tuner.reporting.terminal import in_seconds
from tuner.search_space import describe
from tuner.server.engine_client import DEFAULT_URL
from tuner.store.models import StudyStatus, TrialStatus
from tuner.trials import Trial


def verdict(evidence: Evidence) -> str:
    """The sentence, the table, and what they stand on."""
    study, result = evidence.study, evidence.result
    rows = [
        [
            f"{row.name}\n{row.note}",
            row.ttft,
            f"{'' if row.keeps else '!'}{row.pause} {row.mark}",
            row.refused,
        ]
        for row in rows_of(result)
    ]
    headers = ["", ttft_title(result), "worst pause", "refused"]
    found = Table(headers=headers, rows=rows, title=f"What was found, for a pause of {study.slo_pause_s:g} s")
    state = "good" if result.get("winner") else "open" if result.get("so_far") else "bad"
    facts = {
        "study": f"{study.name} ({study.status.value})",
        "model": study.model,
        "traffic": f"{study.profile}, seed {study.seed}",
        "server": "an engine of its own" if study.engine == OWN_ENGINE else study.engine,
        "measured": f"{study.created_at[:16].replace('T', ' ')} UTC",
        "kept in": evidence.db,
    }
    listed = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts.items()
    )
    tested = " ".join([*tested_of(result), *unmeasured_of(result)])
    return (
        f'<header class="{state}"><p class="brand">Evenflow · report of a study</p>'
        f"<h1>{text(sentence_of(result))}</h1>{table(found, 'verdict') if rows else ''}"
        f"{paragraph(tested)}<dl>{listed}</dl></header>"
    )


# -- before and after --------------------------------------------------------------------------------------


def lanes_section(evidence: Evidence) -> tuple[str, list[Figure]]:
    """The two pictures, side by side."""
    before, after = evidence.before, evidence.after
    if before is None and after is None:
        return section("lanes", "Before and after", paragraph(_no_lanes(evidence))), []
    first = before or after
    assert first is not None
    view = view_of(first, after if before else None)
    runs = [("before", "Before", before), ("after", "After", after)]
    drawn = [lanes_figure(name, title, run, view, evidence.slo_s) for name, title, run in runs if run]
    content = [
        paragraph(_lanes_words(evidence, len(view.shown), view.num_requests)),
        pair(drawn),
        _long_prompts(evidence, [run for _, _, run in runs if run]),
    ]
    return section("lanes", "Before and after", *content), drawn


def _no_lanes(evidence: Evidence) -> str:
    if not any(trial.is_complete for trial in evidence.trials):
        return "No run came to its end, so there is none to draw."
    return "The runs of this study were made before token times were kept, so there is none to draw."


def _lanes_words(evidence: Evidence, num_shown: int, num_requests: int) -> str:
    words = [
        "A lane is a request, a tick a token. Blocks are chunks of a prompt being read; a red bar is a "
        f"stream that stood still for more than {evidence.slo_s:g} s, with what was read meanwhile."
    ]
    if evidence.same_traffic:
        words.append("Both runs met the same requests at the same instants.")
    elif evidence.before and evidence.after:
        words.append(
            "The second run met other requests of the same kind: this config never ran on the first's."
        )
    if num_shown < num_requests:
        words.append(f"Shown are {num_shown} of {num_requests:,} requests, around the worst pause.")
    return " ".join(words)


def _long_prompts(evidence: Evidence, runs: Sequence[Run]) -> str:
    """What chunking cost the long prompts."""
    per_run = [evidence.long_prompts.get(run.number, []) for run in runs]
    if not all(per_run) or len(per_run) < 2 or not evidence.same_traffic:
        return ""
    rows = [_compared(first, second) for first, second in zip(*per_run, strict=False)]
    headers = [
        "prompt",
        "tokens",
        "TTFT",
        "then",
        "chunks",
        "then",
        "prefill overhead",
        "then",
        "efficiency",
        "then",
    ]
    content = Table(headers=headers, rows=rows, title="The long prompts, before and then")
    capacity = evidence.capacity
    error = f" (held-out error {capacity.prefill_error:.0%})" if capacity else ""
    words = (
        "Overhead: prefill time over the same prompt's, unchunked and with nobody there, less 1. Efficiency: "
        "that time and the decode steps that had to run meanwhile, over the TTFT; 1.0 is the limit. The time "
        f"alone is the cost model's{error}. A dash is a prompt beside which more than a "
        "twentieth of its tokens was read of others."
    )
    return details("What it costs the long prompts", table(content) + paragraph(words, "note"))


def _compared(before: LongPrompt, after: LongPrompt) -> list[str]:
    pairs = [
        (in_seconds(one.ttft_s), str(one.num_chunks), _signed(one.overhead), _ratio(one.efficiency))
        for one in (before, after)
    ]
    numbers = [value for both in zip(*pairs, strict=True) for value in both]
    return [before.label, f"{before.prompt_tokens:,}", *numbers]


def _signed(share: float | None) -> str:
    return "–" if share is None else f"{share:+.0%}"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


# -- every trial, and how to have them again ---------------------------------------------------------------


def trials_section(evidence: Evidence) -> str:
    headers = ["run", "why", "config", "long TTFT", "worst pause", "refused", "predicted", "seed", "validity"]
    rows = [_trial(trial, evidence.slo_s) for trial in evidence.trials]
    content = Table(headers=headers, rows=rows, title="Every live run, in order")
    spoiled = [trial for trial in evidence.trials if trial.status is TrialStatus.INVALID]
    words = (
        "A run counts when the load client was exact: it sent on time, its own loop did not lag, and no more "
        "than a tenth of the deciding gap was its own. "
        f"Spoiled and made again: {len(spoiled)} of {len(evidence.trials)}."
    )
    took = nearest_rank([trial.elapsed_s for trial in evidence.trials if trial.is_complete], 0.5)
    length = f" A whole run took {took:.0f} s." if took else ""
    return section(
        "trials", "Every trial, and whether it counts", paragraph(words + length), table(content, "trials")
    )


def _trial(trial: Trial, slo_s: float) -> list[str]:
    pause = trial.worst_pause_s
    breaks = pause is not None and (trial.is_bound or pause > slo_s)
    predicted = in_seconds(trial.predicted_long_ttft_s), in_seconds(trial.predicted_worst_pause_s)
    return [
        str(trial.number),
        KINDS.get(trial.kind, trial.kind.value),
        describe(trial.config),
        ttft(trial),
        f"{'!' if breaks else ''}{'≥ ' if trial.is_bound else ''}{in_seconds(pause)}",
        f"{trial.shed_rate:.0%}" if trial.counts else "–",
        " / ".join(predicted) if trial.predicted_worst_pause_s is not None else "–",
        str(trial.seed),
        _validity(trial),
    ]


_VALIDITY = {
    TrialStatus.DONE: "counts",
    TrialStatus.ABORTED: "counts: stopped early, the pause is a bound",
    TrialStatus.CRASHED: "!the server broke down",
    TrialStatus.INVALID: "!spoiled by the load client",
    TrialStatus.SUSPECT: "set aside and made again",
    TrialStatus.LOST: "lost: ended before it did",
    TrialStatus.RUNNING: "running",
}


def _validity(trial: Trial) -> str:
    words = _VALIDITY.get(trial.status, trial.status.value)
    return f"{words}: {trial.problems}" if trial.problems and trial.status is not TrialStatus.LOST else words


def repeat_section(evidence: Evidence, db_option: str) -> str:
    """The commands that make all of this again."""
    study, name = evidence.study, quote(evidence.study.name)
    db = f" --db {quote(db_option)}" if db_option else ""
    asked = study.sizing.get("command")  # not kept of a study by an older tuner
    optimize = [shlex.join(["tuner", "optimize", *asked]) + db] if asked else []
    again = [
        *optimize,
        f"tuner show {name}{db}",
        f"tuner report {name} --html report.html{db}",
    ]
    content = [paragraph("The same search on the same traffic, and this report:"), commands(again)]
    if winner := evidence.result.get("winner"):
        url = quote(DEFAULT_URL if study.engine == OWN_ENGINE else study.engine)
        content += [
            paragraph("The winner on your server, watched, and taken back if a stream freezes:"),
            commands([f"tuner apply {name} --to {url} --watch 60s{db}", f"tuner rollback --to {url}"]),
            paragraph("Or by hand, as engine serve --config winner.json:"),
            commands(json.dumps(config_of(winner).to_mapping(), indent=2).splitlines()),
        ]
    elif optimize and study.status is not StudyStatus.FINISHED:
        content += [paragraph("To go on with it:"), commands([f"{one} --study {name}" for one in optimize])]
    applied = [
        f"{row.applied_at[:16].replace('T', ' ')} UTC: {row.url}, generation {row.generation}: {row.verdict}"
        for row in evidence.applies
    ]
    content += [paragraph("So far it was put on:"), commands(applied)] if applied else []
    return section("repeat", "Do it again", *content)
