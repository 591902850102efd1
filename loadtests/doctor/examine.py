"""Examines a trace before it is replayed: its figures, and what is wrong with it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from engine.core.errors import TraceError
from loadtests.doctor.columns import Floats, read_columns
from loadtests.doctor.figures import (
    Arrivals,
    Concurrency,
    LongPrompts,
    Owners,
    Prefixes,
    Sessions,
    Spread,
    arrivals,
    concurrency,
    long_prompts,
    owners,
    prefixes,
    sessions,
    spread,
)
from loadtests.doctor.findings import Finding, find
from loadtests.doctor.reuse import PrefixReuse
from loadtests.traces.files import Trace
from loadtests.traces.fixes import LONG_SHARE, ClockFaults, MixedClock, clock_faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What the one who asks knows better than the trace.

    Attributes:
        context_tokens: of the model.
        long_prompt_tokens: None takes the longest tenth, as replay does.
        stream_rate: tokens a second of an answer whose whole time was not recorded.
        seed: of the fixes.
    """

    context_tokens: int | None = None
    long_prompt_tokens: int | None = None
    stream_rate: float = 30.0
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What a trace holds. Times are of stamps in one unit and in order, not yet spread.

    Attributes:
        outcomes: how often each original status came.
        notes: what the reader of the file made up or left out.
    """

    name: str
    format: str
    source: str
    requests: int
    cancelled: int
    outcomes: dict[str, int]
    arrivals: Arrivals
    prompt_tokens: Spread
    output_tokens: Spread
    long_prompts: LongPrompts
    prefixes: Prefixes
    concurrency: Concurrency
    users: Owners | None
    sessions: Sessions | None
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def examine(trace: Trace, questions: Questions | None = None) -> Examination:
    """Reads all of a trace; about 100 bytes a row are kept while it does.

    Raises:
        TraceError: a row cannot be read, or there is none.
    """
    asked, reuse = questions or Questions(), PrefixReuse(trace.header.block)
    columns = read_columns(trace.rows, reuse)
    if not len(columns.t):
        raise TraceError(f"{trace.name}: the trace holds no request")
    faults = clock_faults(columns.t[columns.usable], trace.by_end)
    stamps = _in_one_unit(columns.t, faults)
    coming = arrivals(np.sort(stamps))
    longest_tenth = int(np.sort(columns.prompt)[max(1, int(np.ceil(LONG_SHARE * len(columns.t)))) - 1])
    return Examination(
        name=trace.name,
        format=trace.format,
        source=trace.header.source,
        requests=len(columns.t),
        cancelled=int(columns.cancelled.sum()),
        outcomes=dict(columns.statuses),
        arrivals=coming,
        prompt_tokens=spread(columns.prompt),
        output_tokens=spread(columns.output),
        long_prompts=long_prompts(columns.prompt, asked.long_prompt_tokens or max(1, longest_tenth)),
        prefixes=prefixes(columns, reuse),
        concurrency=concurrency(columns, stamps, asked.stream_rate),
        users=owners(columns.users),
        sessions=sessions(columns),
        findings=find(columns, faults, coming, asked.context_tokens, asked.seed),
        notes=trace.notes.lines,
    )


def _in_one_unit(t: Floats, faults: ClockFaults) -> Floats:
    if not faults.mixed_units:
        return t
    clock = MixedClock(faults.first_s)
    return np.fromiter(map(clock.seconds, t.tolist()), dtype=np.float64, count=len(t))
