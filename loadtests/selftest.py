"""Checks the whole load client, Locust and its process included, against scripted streams."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.records import Outcome, RequestRecord
from engine.core.report import worst_pause
from loadtests.run import LoadResult, run_load
from loadtests.schedule import Schedule, ScheduledRequest
from loadtests.scripted import (
    COMMENT,
    DONE,
    EMPTY_DELTA,
    GENERATION,
    ROLE_ONLY,
    Script,
    ScriptedServer,
    Write,
    event,
    text,
)

MAX_ERROR_S = 0.005
_PROMPT_TOKENS = 32
_STALL_S = 0.5


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the client has to get right."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class SelftestResult:
    """What the client made of the scripts.

    Attributes:
        worst_error_s: the largest difference between a gap as sent and as measured, over all streams.
    """

    worst_error_s: float
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values."""
        checks = [{"name": c.name, "ok": c.ok, "detail": c.detail} for c in self.checks]
        return {"ok": self.ok, "worst_error_s": self.worst_error_s, "checks": checks}


@dataclass(frozen=True, slots=True)
class _Case:
    script: Script
    outcome: Outcome
    num_events: int
    num_tokens: int


def _ending(num_tokens: int) -> bytes:
    """Finish, then usage alone, then the end: none of them content."""
    usage = event(None, usage_tokens=num_tokens, prompt_tokens=_PROMPT_TOKENS)
    return event({}, finish="length") + usage + DONE


def _steady() -> Script:
    words = [Write(0.01, COMMENT + text(), 1) for _ in range(30)]
    return Script((Write(0.02, ROLE_ONLY), *words, Write(0.0, _ending(30))))


def _stalled() -> Script:
    """The stall is filled with keep-alives, which must not shorten it."""
    before, after = [Write(0.02, text(), 1)] * 5, [Write(0.02, text(), 1)] * 5
    stall = [Write(_STALL_S / 4, COMMENT)] * 3 + [Write(_STALL_S / 4, text(), 1)]
    return Script((*before, *stall, *after, Write(0.0, _ending(11))))


def _packed() -> Script:
    """Three events in one packet, one event over three packets, several tokens in one event."""
    whole = text(" split")
    return Script(
        (
            Write(0.01, ROLE_ONLY + text() + text() + text(), 3),
            Write(0.03, whole[:9]),
            Write(0.03, whole[9:-1]),
            Write(0.03, whole[-1:], 1),
            Write(0.04, EMPTY_DELTA),
            Write(0.04, text(" four more tokens here", usage_tokens=8, prompt_tokens=_PROMPT_TOKENS), 1),
            Write(0.0, _ending(8)),
        ),
        chunked=False,
    )


def _cut() -> Script:
    return Script(tuple([Write(0.02, text(), 1)] * 4), is_cut=True)


# By max_tokens, which is how a request names its script.
_CASES: dict[int, _Case] = {
    30: _Case(_steady(), Outcome.COMPLETED, 30, 30),
    11: _Case(_stalled(), Outcome.COMPLETED, 11, 11),
    8: _Case(_packed(), Outcome.COMPLETED, 5, 8),
    4: _Case(_cut(), Outcome.FAILED, 4, 4),
    1: _Case(Script(status=429, headers={"Retry-After": "1"}), Outcome.REFUSED, 0, 0),
}


def run_selftest(attempts: int = 3) -> SelftestResult:
    """Plays every script through the real load client; takes about a second and a half.

    Args:
        attempts: a busy moment of the machine is no fault of the client, so a try that fails is followed
            by another one, up to so many in all. The last one is the result.

    Raises:
        LoadRunError: the load client does not run at all.
    """
    result = _run_once()
    for _ in range(attempts - 1):
        if result.ok:
            break
        result = _run_once()
    return result


def _run_once() -> SelftestResult:
    with ScriptedServer({key: case.script for key, case in _CASES.items()}) as server:
        result = run_load(_schedule(), server.url, expected_generation=GENERATION, grace_s=10.0)
        sent = dict(server.sent)
    records = {record.max_tokens: record for record in result.records}
    errors = [error for key, record in records.items() for error in _gap_errors(record, sent.get(key, ()))]
    worst_error_s = max(errors, default=float("inf"))
    checks = [check for key, case in _CASES.items() for check in _check_case(records[key], case)]
    checks += [_check_stall(records[11]), _check_timing(worst_error_s, len(errors)), _check_gate(result)]
    return SelftestResult(worst_error_s, tuple(checks))


def _schedule() -> Schedule:
    requests = tuple(
        ScheduledRequest(
            id=f"case-{key}",
            at_s=0.03 * index,
            prompt_tokens=_PROMPT_TOKENS,
            max_tokens=key,
            prompt_seed=key,
        )
        for index, key in enumerate(_CASES)
    )
    return Schedule(
        name="selftest", seed=0, requests=requests, duration_s=0.2, grace_s=10.0, long_prompt_tokens=1 << 20
    )


def _gap_errors(record: RequestRecord, sent: Sequence[tuple[int, int]]) -> list[float]:
    """Differences between the gaps as sent and as received, event by event."""
    stamps = [at_ns / 1e9 for at_ns, num_events in sent for _ in range(num_events)]
    true = [later - earlier for earlier, later in itertools.pairwise(stamps)]
    seen = [later.at_s - earlier.at_s for earlier, later in itertools.pairwise(record.events)]
    return [abs(a - b) for a, b in zip(true, seen, strict=False)]


def _check_case(record: RequestRecord, case: _Case) -> list[Check]:
    found: Mapping[str, tuple[object, object]] = {
        "outcome": (record.outcome.value, case.outcome.value),
        "content events": (len(record.events), case.num_events),
        "tokens": (record.output_tokens, case.num_tokens),
    }
    return [
        Check(f"{record.id}: {name}", got == wanted, f"{got}, scripted {wanted}")
        for name, (got, wanted) in found.items()
    ]


def _check_stall(record: RequestRecord) -> Check:
    pause = worst_pause(record)
    seconds = pause.seconds if pause else 0.0
    return Check("the stall is seen", seconds >= _STALL_S - MAX_ERROR_S, f"{seconds:.4f} s of {_STALL_S} s")


def _check_timing(worst_error_s: float, num_gaps: int) -> Check:
    detail = f"worst of {num_gaps} gaps off by {worst_error_s * 1000:.2f} ms"
    return Check("gaps as sent", worst_error_s <= MAX_ERROR_S, detail)


def _check_gate(result: LoadResult) -> Check:
    return Check(
        "the client kept up", result.validity.ok, "; ".join(result.validity.reasons) or "no complaint"
    )
