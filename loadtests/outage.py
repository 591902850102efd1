"""Whether the server was there while it was measured: a refusal is a result, an outage is none."""

from __future__ import annotations

from collections.abc import Sequence

from engine.core.records import Outcome, RequestRecord

_MOST_UNANSWERED = 0.05  # beyond it, a p95 is of the outage and not of the server


def outage(records: Sequence[RequestRecord], *, answers_now: bool) -> str | None:
    """What share of a run failed because the server was gone, and why most likely; None when it was there.

    Args:
        answers_now: the server was asked after the run, and answered.
    """
    failed = [record for record in records if record.outcome is Outcome.FAILED]
    failed.sort(key=lambda record: record.ended_at_s)
    if not failed:
        return None
    unanswered = [record for record in failed if record.http_status is None]
    if not answers_now:
        return (
            f"{_share(failed, records)} failed, the first {failed[0].ended_at_s:.1f} s after the start, and "
            "the server does not answer any more: most likely it died or was stopped"
        )
    if len(unanswered) > _MOST_UNANSWERED * len(records):
        return (
            f"{_share(unanswered, records)} got no answer at all ({_why(unanswered)}), and the server "
            "answers now: most likely it was restarted meanwhile, or something between dropped connections"
        )
    if all(record.outcome in (Outcome.FAILED, Outcome.NEVER_SENT) for record in records):
        return f"{_share(failed, records)} failed and none succeeded ({_why(failed)})"
    return None


def _share(some: Sequence[RequestRecord], all_: Sequence[RequestRecord]) -> str:
    return f"{len(some)} of {len(all_)} requests ({len(some) / len(all_):.0%})"


def _why(records: Sequence[RequestRecord]) -> str:
    return f"the first: {records[0].error or 'no reason given'}"
