"""Recording what a real engine process was sent, and comparing two recordings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from engine.core.trace import TraceRow
from loadtests.run import LoadResult, run_load
from loadtests.traces.files import open_trace
from loadtests.traffic.schedule import Schedule, ScheduledRequest
from tests.tuner.engines import sim_engine

BLOCK = 64


def record(schedule: Schedule, directory: Path) -> tuple[LoadResult, list[TraceRow]]:
    """Plays a schedule against a fresh simulated engine that records; its rows in order of arrival."""
    directory.mkdir(parents=True)
    trace = directory / "trace.jsonl"
    with sim_engine(directory, "--record", str(trace)) as url:
        result = run_load(schedule, url)
    return result, read(trace)


def read(trace: Path) -> list[TraceRow]:
    """Without the warm-up's own requests, if any; by arrival."""
    return sorted(open_trace(trace).rows, key=lambda row: row.t)


def sharing(rows: Sequence[TraceRow]) -> list[list[tuple[int, int]]]:
    """Of every block which row had it first, and as which of its blocks: equal for equal sharing, whatever
    the blocks are called.
    """
    first: dict[str, tuple[int, int]] = {}
    return [
        [first.setdefault(name, (number, place)) for place, name in enumerate(row.prefix)]
        for number, row in enumerate(rows)
    ]


def lengths(rows: Sequence[TraceRow]) -> list[tuple[int, int]]:
    return [(row.prompt_tokens, row.output_tokens) for row in rows]


def arrivals(rows: Sequence[TraceRow]) -> list[float]:
    """Seconds from the first."""
    return [row.t - rows[0].t for row in rows]


def in_order_of(rows: Sequence[TraceRow], others: Sequence[TraceRow]) -> list[TraceRow]:
    """The rows as their like stand among the others: on a busy machine one request overtakes another. No two
    are of the same lengths.
    """
    wanted = lengths(others)
    assert len(set(wanted)) == len(wanted)
    return sorted(rows, key=lambda row: wanted.index((row.prompt_tokens, row.output_tokens)))


def team_traffic(num_requests: int, every_s: float, seed: int = 1) -> Schedule:
    """Conversations of a few turns, all with the same system prompt, and single questions among them."""
    rng = random.Random(seed)
    requests: list[ScheduledRequest] = []
    for number in range(num_requests):
        before = rng.choice(requests[-4:]) if requests and rng.random() < 0.6 else None
        requests.append(_request(number, number * every_s, before, rng))
    return Schedule(
        name="team", seed=seed, requests=tuple(requests), duration_s=num_requests * every_s, grace_s=60.0,
        long_prompt_tokens=900,
    )  # fmt: skip


def _request(
    number: int, at_s: float, before: ScheduledRequest | None, rng: random.Random
) -> ScheduledRequest:
    new = rng.randint(20, 150)
    tokens = before.prompt_tokens + before.max_tokens + new if before else 2 * BLOCK + new
    known = before.prefix[: before.prompt_tokens // BLOCK] if before else ("system/0", "system/1")
    names = (*known, *(f"{number}/{block}" for block in range(len(known), -(-tokens // BLOCK))))
    return ScheduledRequest(
        id=f"q{number}",
        at_s=at_s,
        prompt_tokens=tokens,
        max_tokens=rng.randint(1, 12),
        prompt_seed=number,
        prefix=names,
        prefix_block_tokens=BLOCK,
        after=before.id if before else None,
        user=f"user {number % 3}",
        session=before.session if before else f"session {number}",
        priority=rng.choice([0, 0, 1]),
    )
