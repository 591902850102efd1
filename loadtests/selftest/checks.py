"""Checks the whole load client, Locust and its process included, against scripted streams."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.records import Outcome, RequestRecord
from engine.core.report import ttft_wire, worst_pause
from loadtests.run import LoadResult, run_load
from loadtests.selftest.cases import CASES, PROMPT_TOKENS, RETRY_AFTER_S, STALL_S, Case
from loadtests.selftest.scripted_server import GENERATION, ScriptedServer
from loadtests.traffic.schedule import Schedule, ScheduledRequest

MAX_ERROR_S = 0.005


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
        worst_error_s: the largest difference between a time as scripted and as measured, over all requests.
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
class _Pair:
    """A time as the server knows it and as the client measured it, seconds."""

    what: str
    true_s: float
    seen_s: float

    @property
    def error_s(self) -> float:
        return abs(self.seen_s - self.true_s)

    def __str__(self) -> str:
        return f"{self.what} {self.seen_s * 1000:.1f} ms, scripted {self.true_s * 1000:.1f} ms"


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
    with ScriptedServer({key: case.script for key, case in CASES.items()}) as server:
        result = run_load(_schedule(), server.url, expected_generation=GENERATION, retries=1)
    checks: list[Check] = []
    pairs: list[_Pair] = []
    for record in result.records:
        key = record.max_tokens
        mine = list(_times(record, server.received[key], _stamps(server.sent[key])))
        checks += [_check_case(record, CASES[key]), _check_times(CASES[key].name, mine)]
        pairs += mine
    checks += [_check_stall(result), _check_retries(result), _check_gate(result)]
    return SelftestResult(max((pair.error_s for pair in pairs), default=float("inf")), tuple(checks))


def _schedule() -> Schedule:
    requests = tuple(
        ScheduledRequest(
            id=case.name, at_s=0.03 * index, prompt_tokens=PROMPT_TOKENS, max_tokens=key, prompt_seed=key
        )
        for index, (key, case) in enumerate(CASES.items())
    )
    return Schedule(
        name="selftest", seed=0, requests=requests, duration_s=0.5, grace_s=10.0, long_prompt_tokens=1 << 20
    )


def _stamps(sent: Sequence[tuple[int, int]]) -> list[int]:
    """When each content event was written, ns."""
    return [at_ns for at_ns, num_events in sent for _ in range(num_events)]


def _times(record: RequestRecord, received: Sequence[int], stamps: Sequence[int]) -> Iterator[_Pair]:
    """Everything that both sides have timed."""
    events, wire_s = record.events, ttft_wire(record)
    if wire_s is not None and stamps:
        yield _Pair("TTFT", (stamps[0] - received[-1]) / 1e9, wire_s)
    true = [(later - earlier) / 1e9 for earlier, later in itertools.pairwise(stamps)]
    seen = [later.at_s - earlier.at_s for earlier, later in itertools.pairwise(events)]
    yield from (_Pair(f"gap {k}", *pair) for k, pair in enumerate(zip(true, seen, strict=False), start=1))
    pause = worst_pause(record)
    if true and pause is not None and record.outcome is Outcome.COMPLETED:
        yield _Pair("worst pause", max(true), pause.seconds)
    if record.resent_at_s is not None and record.sent_at_s is not None:
        yield _Pair("retry after", (received[-1] - received[0]) / 1e9, record.resent_at_s - record.sent_at_s)


def _check_case(record: RequestRecord, case: Case) -> Check:
    got = (record.outcome.value, len(record.events), record.output_tokens)
    wanted = (case.outcome.value, case.num_events, case.num_tokens)
    detail = "{}, {} content events, {} tokens".format(*got)
    scripted = "" if got == wanted else "; scripted: {}, {}, {}".format(*wanted)
    return Check(case.name, got == wanted, detail + scripted)


def _check_times(name: str, pairs: Sequence[_Pair]) -> Check:
    worst = max(pairs, key=lambda pair: pair.error_s, default=None)
    if worst is None:
        return Check(f"{name}: times", False, "nothing was timed")
    detail = f"{len(pairs)} times, worst off by {worst.error_s * 1000:.2f} ms"
    ok = worst.error_s <= MAX_ERROR_S
    return Check(f"{name}: times", ok, detail if ok else f"{detail} ({worst})")


def _check_stall(result: LoadResult) -> Check:
    pauses = [pause.seconds for record in result.records if (pause := worst_pause(record)) is not None]
    longest_s = max(pauses, default=0.0)
    return Check("the stall is seen", longest_s >= STALL_S - MAX_ERROR_S, f"{longest_s:.4f} s of {STALL_S} s")


def _check_retries(result: LoadResult) -> Check:
    waits = [r.resent_at_s - r.sent_at_s for r in result.records if r.resent_at_s and r.sent_at_s]
    refused = sum(case.outcome is Outcome.REFUSED for case in CASES.values())
    ok = len(waits) == refused and min(waits) >= RETRY_AFTER_S
    return Check("Retry-After is kept", ok, f"{len(waits)} of {refused} refusals sent again in time")


def _check_gate(result: LoadResult) -> Check:
    return Check(
        "the client kept up", result.validity.ok, "; ".join(result.validity.reasons) or "no complaint"
    )
