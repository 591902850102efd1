"""What is measured, as rows of the tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.core.quantiles import nearest_rank
from engine.core.records import RequestRecord
from engine.core.report import TrialSummary, is_long, pauses, scored_ttft, ttft, worst_pause
from tuner.evaluation.evaluators import Measurement
from tuner.store.models import RequestRow, TimelineRow, TrialRow, TrialStatus
from tuner.timeline import timeline_of


def finite(value: float | None) -> float | None:
    """A database and JSON hold no infinity: None stands for it."""
    return value if value is not None and math.isfinite(value) else None


def put_measured(trial: TrialRow, measured: Measurement) -> None:
    """Writes what came of a run into its row."""
    trial.status = _status(measured)
    trial.elapsed_s = measured.elapsed_s
    trial.generation = measured.generation
    trial.problems = measured.crash or "; ".join(measured.problems)
    if measured.summary is not None:
        _put_summary(trial, measured.summary)
        trial.summary |= {"long_ttfts_s": _long_ttfts(measured)}


def _status(measured: Measurement) -> TrialStatus:
    if measured.crash is not None:
        return TrialStatus.CRASHED
    if measured.summary is None or measured.problems:
        return TrialStatus.INVALID
    return TrialStatus.ABORTED if measured.aborted else TrialStatus.DONE


def _put_summary(trial: TrialRow, summary: TrialSummary) -> None:
    trial.summary = summary.to_mapping()
    trial.worst_pause_s = summary.worst_pause_s
    trial.long_ttft_p95_s = finite(summary.long_ttft_p95_s)
    trial.shed_rate = summary.shed_rate


def _long_ttfts(measured: Measurement) -> list[float | None]:
    """Scored TTFT of every measured long request, None for infinity: what replicates are pooled from."""
    return [
        finite(scored_ttft(record))
        for record in measured.records
        if record.measured and is_long(record, measured.long_prompt_tokens)
    ]


def request_row(trial: TrialRow, record: RequestRecord, slo_pause_s: float) -> RequestRow:
    """One request of the trial."""
    assert trial.id is not None
    gaps = pauses(record)
    worst = worst_pause(record)
    return RequestRow(
        trial_id=trial.id,
        request_id=record.id,
        kind=record.kind,
        measured=record.measured,
        outcome=record.outcome.value,
        scheduled_at_s=record.scheduled_at_s,
        sent_at_s=record.sent_at_s,
        ended_at_s=record.ended_at_s,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        output_tokens=record.output_tokens,
        num_events=len(record.events),
        ttft_s=ttft(record),
        worst_pause_s=worst.seconds if worst else None,
        worst_pause_at_s=worst.at_s if worst else None,
        worst_pause_open=worst is not None and worst.is_bound,
        gap_p50_s=nearest_rank([gap.seconds for gap in gaps], 0.5),
        gaps_over_slo=sum(gap.seconds > slo_pause_s for gap in gaps),
        http_status=record.http_status,
        generation=record.generation,
        error=record.error,
        timings=_plain(record.timings),
    )


def timeline_row(trial: TrialRow, measured: Measurement) -> TimelineRow:
    """When the trial's tokens came."""
    assert trial.id is not None
    kept = timeline_of(measured.records, measured.steps)
    return TimelineRow(trial_id=trial.id, timeline=kept.to_mapping())


def _plain(timings: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict(timings or {})
