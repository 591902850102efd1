"""A job split over several load processes, and what they saw put together again. No I/O.

A job is played by one process or by several alike: each request by exactly one of them, a session's turns by
the same one. What a lost process leaves behind is accounted for: a request that had been sent has failed,
the others were never sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.core.records import Outcome

Job = Mapping[str, Any]
LOST = "the load process that played it was lost"


def split(job: Job, num_parts: int) -> list[dict[str, Any]]:
    """The job's requests dealt out in turn, each turn of a session to whoever plays the turn before."""
    parts: list[list[Mapping[str, Any]]] = [[] for _ in range(num_parts)]
    part_of: dict[str, int] = {}
    num_dealt = 0
    for request in job["requests"]:
        part = part_of.get(request.get("after"), num_dealt % num_parts)
        num_dealt += request.get("after") not in part_of
        part_of[request["id"]] = part
        parts[part].append(request)
    return [{**job, "requests": requests} for requests in parts]


@dataclass(slots=True)
class _Part:
    """One process's share.

    Attributes:
        running: of requests sent and not ended when it was heard from last: when they were sent, by id.
        records: of requests that have ended, by id.
        result: what it handed in at its end, as `Player.play` gives it.
    """

    job: Job
    is_ready: bool = False
    is_lost: bool = False
    num_sent: int = 0
    worst_pause_s: float = 0.0
    running: Mapping[str, float] = field(default_factory=dict)
    records: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    result: Mapping[str, Any] | None = None


class Crew:
    """Who plays which part of a job, and what has come of it.

    Args:
        workers: ids of the processes, at least one.
    """

    def __init__(self, job: Job, workers: Sequence[str]) -> None:
        self._job = job
        self._parts = dict(zip(workers, map(_Part, split(job, len(workers))), strict=True))

    def part(self, worker: str) -> Job:
        return self._parts[worker].job

    @property
    def workers(self) -> list[str]:
        """Those not lost."""
        return [worker for worker, part in self._parts.items() if not part.is_lost]

    @property
    def is_ready(self) -> bool:
        return all(part.is_ready or part.is_lost for part in self._parts.values())

    @property
    def is_done(self) -> bool:
        return all(part.result is not None or part.is_lost for part in self._parts.values())

    @property
    def has_aborted(self) -> bool:
        """One of them has seen a pause that ends the run for all."""
        return any(
            part.result is not None and part.result["aborted_at_s"] is not None
            for part in self._parts.values()
        )

    def ready(self, worker: str) -> None:
        self._parts[worker].is_ready = True

    def hear(self, worker: str, said: Mapping[str, Any]) -> None:
        """Progress: `num_sent`, `worst_pause_s`, `running`, and the `records` that are new."""
        part = self._parts[worker]
        part.num_sent, part.worst_pause_s, part.running = (
            said["num_sent"],
            said["worst_pause_s"],
            said["running"],
        )
        part.records |= {record["id"]: record for record in said["records"]}

    def hand_in(self, worker: str, result: Mapping[str, Any]) -> None:
        self._parts[worker].result = result

    def lose(self, worker: str) -> bool:
        """The process is gone; whether that leaves anything unplayed."""
        part = self._parts[worker]
        part.is_lost = part.result is None
        return part.is_lost

    def progress(self) -> dict[str, Any]:
        parts = self._parts.values()
        return {
            "sent": sum(part.num_sent for part in parts),
            "ended": sum(len(part.records) for part in parts),
            "worst_pause_s": max(part.worst_pause_s for part in parts),
        }

    def result(self, elapsed_s: float) -> dict[str, Any]:
        """As `Player.play` gives it for the whole job.

        Args:
            elapsed_s: of the run; what a lost process left open ends there.
        """
        records: dict[str, list[Mapping[str, Any]]] = {}
        for part in self._parts.values():
            played = part.result["records"] if part.result is not None else _left_behind(part, elapsed_s)
            for record in played:
                records.setdefault(record["id"], []).append(record)
        results = [part.result for part in self._parts.values() if part.result is not None]
        # The gate reads the last lags before an early stop: they are those of whoever stopped.
        results.sort(key=lambda result: result["aborted_at_s"] is not None)
        aborts = [result["aborted_at_s"] for result in results if result["aborted_at_s"] is not None]
        return {
            "records": [records[request["id"]].pop(0) for request in self._job["requests"]],
            "loop_lags_s": [lag for result in results for lag in result["loop_lags_s"]],
            "cpu_share": max((result["cpu_share"] for result in results), default=0.0),
            "aborted_at_s": min(aborts, default=None),
            "elapsed_s": max((result["elapsed_s"] for result in results), default=elapsed_s),
            "num_lost": sum(part.is_lost for part in self._parts.values()),
        }


def _left_behind(part: _Part, elapsed_s: float) -> list[Mapping[str, Any]]:
    """A record for every request of a lost process."""
    return [
        part.records.get(r["id"]) or _lost(r, part.running.get(r["id"]), elapsed_s)
        for r in part.job["requests"]
    ]


def _lost(request: Mapping[str, Any], sent_at_s: float | None, elapsed_s: float) -> dict[str, Any]:
    outcome = Outcome.NEVER_SENT if sent_at_s is None else Outcome.FAILED
    return {
        "id": request["id"],
        "scheduled_at_s": request["at_s"],
        "outcome": outcome.value,
        "sent_at_s": sent_at_s,
        "ended_at_s": max(elapsed_s, request["at_s"]),
        "error": LOST,
    }


def prompt_seed(worker: int, user: int, turn: int) -> int:
    """Of a user's question: another one for every worker, user and turn (up to a million of each)."""
    return (worker << 40) | (user << 20) | turn
