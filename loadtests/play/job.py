"""What a run hands to its load processes and gets back from them, as JSON values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine.core.records import ContentEvent, Outcome, RequestRecord
from loadtests.client.target import Target, model_name
from loadtests.synthesis.prompts import Prompt, bodies
from loadtests.traffic.schedule import Schedule, ScheduledRequest


def make_job(
    schedule: Schedule,
    target: Target,
    prompts: dict[str, Prompt],
    *,
    abort_pause_s: float | None = None,
    grace_s: float | None = None,
    retries: int = 0,
) -> dict[str, Any]:
    """What a load process has to know to play the schedule, as JSON values."""
    made = bodies(schedule.requests, prompts, target, model_name(target))
    return {
        "url": target.url,
        "headers": target.request_headers(),
        "duration_s": schedule.duration_s,
        "grace_s": schedule.grace_s if grace_s is None else grace_s,
        "abort_pause_s": abort_pause_s,
        "requests": [_request(request, made[request.id], retries) for request in schedule.requests],
    }


def _request(request: ScheduledRequest, body: dict[str, object], retries: int) -> dict[str, Any]:
    """Only a turn that waits for the one before it says `after`."""
    return {
        "id": request.id,
        "at_s": request.at_s,
        "after": None if request.think_s is None else request.after,
        "think_s": request.think_s,
        "kind": request.kind,
        "measured": request.measured,
        "max_tokens": request.max_tokens,
        "cancel_s": request.cancel_s,
        "retries": max(retries, request.retries),
        "headers": {"x-session-id": request.session} if request.session else {},
        "body": json.dumps(body),
    }


def read_record(scheduled: ScheduledRequest, planned_tokens: int, raw: Mapping[str, Any]) -> RequestRecord:
    """One of a result's records, with what the schedule knows of the request."""
    events = tuple(
        ContentEvent(at_s, tokens, None if emit_ns is None else emit_ns / 1e9)
        for at_s, tokens, emit_ns in raw.get("events", ())
    )
    return RequestRecord(
        id=scheduled.id,
        scheduled_at_s=raw["scheduled_at_s"],
        planned_prompt_tokens=planned_tokens,
        max_tokens=scheduled.max_tokens,
        outcome=Outcome(raw["outcome"]),
        ended_at_s=raw["ended_at_s"],
        sent_at_s=raw.get("sent_at_s"),
        resent_at_s=raw.get("resent_at_s"),
        events=events,
        prompt_tokens=raw.get("prompt_tokens"),
        cached_tokens=raw.get("cached_tokens") or 0,
        output_tokens=raw.get("output_tokens") or 0,
        http_status=raw.get("http_status"),
        generation=raw.get("generation"),
        error=raw.get("error"),
        measured=scheduled.measured,
        kind=scheduled.kind,
        slo_class=scheduled.slo_class,
        timings=raw.get("timings"),
    )
