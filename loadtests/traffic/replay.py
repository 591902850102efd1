"""Turns a recorded trace into a schedule.

Open replay: every request is sent at its recorded time, whatever became of the ones before it. Session
replay: a session's first turn is; a later one is sent when its user has read the answer before it and thought
as long as then, so that a slow server is asked less. That answer may have failed or been refused: the user
goes on from when that was known.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from engine.core.errors import TraceError
from engine.core.quantiles import nearest_rank
from engine.core.trace import TraceRow
from loadtests.traces import fixes
from loadtests.traces.fixes import Notes
from loadtests.traffic.schedule import Schedule, ScheduledRequest, uncached_tokens
from loadtests.traffic.sessions import follow_on, share_blocks

_MIN_OUTPUT_TOKENS = 16  # of a shortened answer, so that it still streams


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How a trace is replayed; the defaults replay it as recorded.

    Attributes:
        mode: `open`, or `session` where later turns wait for the answer before them.
        speed: 2 sends everything in half the time; users then think half as long, too.
        start_s, end_s: the part of the trace to replay, in its own seconds.
        warm_up_s: requests due in the first such seconds of the replay are sent but not measured.
        keep_share: the share of users (or sessions, or rows without either) that are kept: whole ones, so
            that what they do between their requests survives.
        max_idle_s: longer silences, and longer thought, are shortened to this.
        shrink: every length and every prefix block is divided by this, so that a trace of long prompts fits
            a small host and shares as much of them; no answer becomes shorter than 16 tokens.
        context_tokens: prompts that do not fit with their output are cut.
        max_output_tokens: longer answers are cut.
        retries: how often a refused request is sent again by a user who returns: one with more requests.
        grace_s: of the drain.
        long_prompt_tokens: None counts as long what a tenth of the prompts have new.
    """

    mode: Literal["open", "session"] = "open"
    speed: float = 1.0
    start_s: float = 0.0
    end_s: float | None = None
    warm_up_s: float = 0.0
    keep_share: float = 1.0
    max_idle_s: float | None = None
    shrink: int = 1
    context_tokens: int | None = None
    max_output_tokens: int | None = None
    retries: int = 3
    grace_s: float = 120.0
    long_prompt_tokens: int | None = None


def schedule_from_trace(
    rows: Iterable[TraceRow],
    seed: int,
    options: ReplayOptions | None = None,
    *,
    name: str = "trace",
    block_tokens: int = 0,
    by_end: bool = False,
    read_notes: Iterable[str] = (),
) -> Schedule:
    """The schedule of a replay; what had to be mended is in its `notes`.

    Args:
        seed: of prompts, thinning and the spreading of coarse time stamps.
        block_tokens: tokens per prefix block: the trace header's `block`.
        by_end: the rows lie in the order of their ends, which is no fault.
        read_notes: what was noted when the rows were read; comes first in the schedule's.

    Raises:
        TraceError: nothing is left to replay.
    """
    options, notes = options or ReplayOptions(), Notes()
    block_tokens = _shrunk(block_tokens, options.shrink) if block_tokens else 0
    usable = list(fixes.drop_failed(map(_as_asked, rows), notes))
    mended = fixes.mend(usable, fixes.clock_faults([row.t for row in usable], by_end), seed, notes)
    kept = _rows_to_replay(mended, seed, options, block_tokens, notes)
    if not kept:
        raise TraceError(f"{name}: no request is left to replay; widen the window or keep more of it")
    returning = _returning(kept)
    requests = tuple(
        _request(row, block, seed, options, row_returns=bool(returning & {row.user, row.session}))
        for row, block in share_blocks(kept, block_tokens)
    )
    return Schedule(
        name=name,
        seed=seed,
        requests=requests,
        duration_s=requests[-1].at_s,
        grace_s=options.grace_s,
        long_prompt_tokens=options.long_prompt_tokens or _long_threshold(requests),
        notes=(*read_notes, *notes.lines),
    )


def _rows_to_replay(
    rows: Iterable[TraceRow], seed: int, options: ReplayOptions, block_tokens: int, notes: Notes
) -> list[TraceRow]:
    """With unique ids, `t` counted from the replay's start; whatever a row follows is before it."""
    linked = fixes.unique_ids(follow_on(list(rows)), notes)
    cropped = fixes.crop(linked, options.start_s, options.end_s)
    kept = fixes.link_turns(fixes.thin(cropped, options.keep_share, seed), notes)
    timed = fixes.retime(kept, start_s=options.start_s, max_idle_s=options.max_idle_s, speed=options.speed)
    fitted = fixes.cap_lengths(
        (_shorter(row, options.shrink) for row in timed),
        notes,
        context_tokens=options.context_tokens,
        max_output_tokens=options.max_output_tokens,
        block_tokens=block_tokens,
    )
    return list(fitted)


def _as_asked(row: TraceRow) -> TraceRow:
    """A request whose client left is asked for the whole answer it wanted then, not for what it saw of it."""
    if row.cancel_s is None:
        return row
    return replace(row, output_tokens=max(row.output_tokens + 1, row.max_tokens or 0))


def _shorter(row: TraceRow, divisor: int) -> TraceRow:
    if divisor == 1:
        return row
    least = min(row.output_tokens, _MIN_OUTPUT_TOKENS)
    prompt, output = _shrunk(row.prompt_tokens, divisor), _shrunk(row.output_tokens, divisor)
    return replace(row, prompt_tokens=prompt, output_tokens=max(least, output))


def _shrunk(tokens: int, divisor: int) -> int:
    return max(1, -(-tokens // divisor))


def _returning(rows: Sequence[TraceRow]) -> set[str | None]:
    """Users and sessions with more than one request."""
    counts = Counter(name for row in rows for name in {row.user, row.session} if name)
    return {name for name, count in counts.items() if count > 1}


def _request(
    row: TraceRow, block_tokens: int, seed: int, options: ReplayOptions, row_returns: bool
) -> ScheduledRequest:
    waits = options.mode == "session" and row.after is not None
    return ScheduledRequest(
        id=row.id,
        at_s=row.t,
        prompt_tokens=row.prompt_tokens,
        max_tokens=row.output_tokens,
        prompt_seed=random.Random(f"{seed}/{row.id}").getrandbits(48),
        kind="trace",
        measured=row.t >= options.warm_up_s,
        prefix=row.prefix,
        prefix_block_tokens=block_tokens,
        cancel_s=row.cancel_s,
        priority=row.priority or 0,
        user=row.user,
        session=row.session,
        after=row.after,
        think_s=(row.think_s or 0.0) if waits else None,
        retries=options.retries if row_returns else 0,
    )


def _long_threshold(requests: Sequence[ScheduledRequest]) -> int:
    """By what no prompt before them holds already: that is what a request counts as long by."""
    threshold = nearest_rank(uncached_tokens(requests), fixes.LONG_SHARE)
    return max(1, int(threshold or 1))
