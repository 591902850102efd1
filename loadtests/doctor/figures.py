"""The figures of a trace, computed from its columns. Percentiles are nearest-rank, on all rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from engine.core.quantiles import supported
from loadtests.doctor.columns import NOBODY, UNKNOWN, Columns, Floats, Ints
from loadtests.doctor.reuse import PrefixReuse

PERCENTILES = (0.5, 0.9, 0.95, 0.99)
_WINDOWS_S = (1.0, 10.0, 60.0, 600.0)
_MIN_WINDOWS, _MAX_WINDOWS = 10, 1 << 21
_MINUTE_S = 60.0
_IDLE_GAPS = 10.0  # silences of so many mean gaps, and a minute at least, are unusual
_BINS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """When requests came.

    Attributes:
        cv: of the times between arrivals: 0 a metronome, 1 Poisson, above it bursts.
        dispersion: variance over mean of the counts in windows of so many seconds; 1 is Poisson.
        silences, dead_minutes: unusually long times without a request, and whole minutes in them.
        per_bin: requests in equal parts of the duration.
    """

    first_s: float
    duration_s: float
    rate_per_s: float | None
    cv: float | None
    dispersion: dict[str, float]
    busiest_minute: int
    longest_silence_s: float
    silences: int
    dead_minutes: int
    per_bin: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a quantity is distributed.

    Attributes:
        percentiles: by name; only those that so many samples support.
        per_bin: counts up to and including 1, 2, 4, 8 and so on.
    """

    n: int
    mean: float
    percentiles: dict[str, float]
    largest: float
    per_bin: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPrompts:
    """Prompts of at least `threshold_tokens`."""

    threshold_tokens: int
    requests: int
    share_of_requests: float
    share_of_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """What the prompts have in common in front; shares of all prompt tokens.

    Attributes:
        block: tokens of one; 0 when nobody counted them.
        ideal_hit: a cache that never forgets would hold; None without prefix blocks.
        error: its standard error; 0 when exact. One block in `one_in` was looked at.
        recorded_hit: the recorded server's cache held, of the rows that say so.
        shared_rows: share of rows whose first block had come before, of those with blocks.
    """

    block: int
    requests: int
    ideal_hit: float | None
    error: float
    one_in: int
    shared_rows: float | None
    recorded_hit: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """Requests inside at the same time.

    Attributes:
        recorded: share of requests whose time from arrival to end is known; the others take their answer's
            tokens at `stream_rate` a second, with no time for reading.
    """

    mean: float
    most: int
    recorded: float
    stream_rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """Whose the requests are.

    Attributes:
        busiest: share of all requests that the busiest user (or session) made.
        busiest_tenth: that the busiest tenth of them made.
        requests: how many each made.
    """

    num: int
    busiest: float
    busiest_tenth: float
    requests: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Turns that follow one another.

    Attributes:
        followed: turns that name the one before.
        think_s: seconds between a turn's end and the next.
    """

    owners: Owners
    followed: int
    think_s: Spread | None


def arrivals(stamps: Floats) -> Arrivals:
    """Of stamps in order; at least one."""
    gaps = np.diff(stamps)
    duration_s, mean_s = float(stamps[-1] - stamps[0]), float(gaps.mean()) if len(gaps) else 0.0
    silences = gaps[gaps > max(_MINUTE_S, _IDLE_GAPS * mean_s)]
    return Arrivals(
        first_s=float(stamps[0]),
        duration_s=duration_s,
        rate_per_s=len(gaps) / duration_s if duration_s else None,
        cv=float(gaps.std() / mean_s) if mean_s else None,
        dispersion=_dispersion(stamps - stamps[0], duration_s),
        busiest_minute=_busiest(stamps, _MINUTE_S),
        longest_silence_s=float(gaps.max()) if len(gaps) else 0.0,
        silences=len(silences),
        dead_minutes=int((silences // _MINUTE_S).sum()),
        per_bin=tuple(np.histogram(stamps, _BINS)[0].tolist()) if duration_s else (len(stamps),),
    )


def _dispersion(since_start: Floats, duration_s: float) -> dict[str, float]:
    indices = {}
    for window_s in _WINDOWS_S:
        windows = math.floor(duration_s / window_s)
        if _MIN_WINDOWS <= windows <= _MAX_WINDOWS:
            whole = since_start[since_start < windows * window_s]
            counts = np.bincount((whole // window_s).astype(np.int64), minlength=windows)
            indices[f"{window_s:g}"] = float(counts.var() / counts.mean())
    return indices


def _busiest(stamps: Floats, window_s: float) -> int:
    """The most requests in any window that starts with one."""
    ends = np.searchsorted(stamps, stamps + window_s, side="left")
    return int((ends - np.arange(len(stamps))).max())


def spread(samples: Floats | Ints) -> Spread:
    """Of at least one sample from 0."""
    ordered = np.sort(samples)
    n = len(ordered)
    ranks = {q: max(1, math.ceil(q * n - 1e-9)) - 1 for q in PERCENTILES if supported(q, n)}
    doubled = np.ceil(np.log2(np.maximum(ordered, 1))).astype(np.int64)
    return Spread(
        n=n,
        mean=float(ordered.mean()),
        percentiles={f"p{q * 100:g}": ordered[rank].item() for q, rank in ranks.items()},
        largest=ordered[-1].item(),
        per_bin=tuple(np.bincount(doubled).tolist()),
    )


def long_prompts(prompt: Ints, threshold: int) -> LongPrompts:
    """Of at least one prompt."""
    is_long = prompt >= threshold
    return LongPrompts(
        threshold_tokens=threshold,
        requests=int(is_long.sum()),
        share_of_requests=float(is_long.mean()),
        share_of_tokens=float(prompt[is_long].sum() / max(1, prompt.sum())),
    )


def prefixes(columns: Columns, reuse: PrefixReuse) -> Prefixes:
    """Of at least one row."""
    total = max(1, int(columns.prompt.sum()))
    said = columns.cached != UNKNOWN
    told = max(1, int(columns.prompt[said].sum()))
    return Prefixes(
        block=reuse.block_tokens,
        requests=reuse.num_rows,
        ideal_hit=reuse.hit_tokens / total if reuse.num_rows else None,
        error=reuse.error_tokens / total,
        one_in=reuse.one_in,
        shared_rows=reuse.shared_rows / reuse.num_rows if reuse.num_rows else None,
        recorded_hit=float(columns.cached[said].sum() / told) if said.any() else None,
    )


def concurrency(columns: Columns, stamps: Floats, stream_rate: float) -> Concurrency:
    """Of at least one row.

    Args:
        stamps: the rows' times, in the columns' order.
        stream_rate: tokens a second of an answer whose whole time is not known.
    """
    known = np.isfinite(columns.whole_s)
    lasting = np.where(known, columns.whole_s, columns.output / stream_rate)
    starts, ends = np.sort(stamps), np.sort(stamps + lasting)
    inside = np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")
    span_s = float(max(ends[-1], starts[-1]) - starts[0])
    return Concurrency(
        mean=float(lasting.sum() / span_s) if span_s else float(len(starts)),
        most=max(1, int(inside.max())),
        recorded=float(known.mean()),
        stream_rate=stream_rate,
    )


def owners(names: Ints) -> Owners | None:
    """Who is busiest, among the rows that name somebody; None when none does."""
    named = names[names != NOBODY]
    if not len(named):
        return None
    counts = np.sort(np.unique(named, return_counts=True)[1])[::-1]
    tenth = max(1, len(counts) // 10)
    return Owners(
        num=len(counts),
        busiest=float(counts[0] / len(names)),
        busiest_tenth=float(counts[:tenth].sum() / len(names)),
        requests=spread(counts),
    )


def sessions(columns: Columns) -> Sessions | None:
    """Of at least one row; None when no row is in a session."""
    found = owners(columns.sessions)
    thinking = columns.think_s[np.isfinite(columns.think_s)]
    if found is None:
        return None
    return Sessions(
        owners=found,
        followed=int((columns.after != NOBODY).sum()),
        think_s=spread(thinking) if len(thinking) else None,
    )
