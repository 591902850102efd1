"""Turns a recorded trace into a schedule.

Open replay: every request is sent at its recorded time, whatever became of the ones before it. (Session
replay, where a turn waits for the answer before it, is not here yet: `session` rows are replayed open.)
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from engine.core.errors import TraceError
from engine.core.quantiles import nearest_rank
from engine.core.trace import TraceRow
from loadtests.schedule import Schedule, ScheduledRequest

_LONG_SHARE = 0.9  # prompts longer than this share of all count as long, when nothing else was said
_QUANTISED_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How a trace is replayed; the defaults replay it as recorded.

    Attributes:
        speed: 2 sends everything in half the time.
        start_s, end_s: the part of the trace to replay, in its own seconds.
        warm_up_s: requests in the first such seconds of the replay are sent but not measured.
        keep_share: the share of users (or sessions, or rows without either) that are kept: whole ones, so
            that what they do between their requests survives.
        max_idle_s: longer silences are shortened to this.
        context_tokens: prompts that do not fit with their output are cut.
        max_output_tokens: longer answers are cut.
        grace_s: of the drain.
        long_prompt_tokens: None counts the longest tenth of the prompts as long.
    """

    speed: float = 1.0
    start_s: float = 0.0
    end_s: float | None = None
    warm_up_s: float = 0.0
    keep_share: float = 1.0
    max_idle_s: float | None = None
    context_tokens: int | None = None
    max_output_tokens: int | None = None
    grace_s: float = 120.0
    long_prompt_tokens: int | None = None


def schedule_from_trace(
    rows: Iterable[TraceRow],
    seed: int,
    options: ReplayOptions | None = None,
    *,
    name: str = "trace",
    block_tokens: int = 0,
) -> Schedule:
    """The schedule of an open replay; what had to be mended is in its `notes`.

    Args:
        seed: of prompts, thinning and the spreading of coarse time stamps.
        block_tokens: tokens per prefix block: the trace header's `block`.

    Raises:
        TraceError: nothing is left to replay.
    """
    replay = _Replay(options or ReplayOptions(), seed)
    kept = replay.mend(list(rows))
    if not kept:
        raise TraceError(f"{name}: no request is left to replay; widen the window or keep more of it")
    requests = tuple(replay.request(row, block_tokens) for row in kept)
    return Schedule(
        name=name,
        seed=seed,
        requests=requests,
        duration_s=requests[-1].at_s,
        grace_s=replay.options.grace_s,
        long_prompt_tokens=replay.options.long_prompt_tokens or _long_threshold(requests),
        notes=tuple(replay.notes),
    )


class _Replay:
    def __init__(self, options: ReplayOptions, seed: int) -> None:
        self.options, self.seed = options, seed
        self.notes: list[str] = []

    def mend(self, rows: list[TraceRow]) -> list[TraceRow]:
        """The rows to replay, sorted, with unique ids and `t` counted from the replay's start."""
        rows = self._without_failed(rows)
        rows = self._spread(self._sorted(rows))
        rows = self._window(rows)
        rows = [row for row in rows if self._keeps(row)]
        rows = self._timed(rows)
        return self._fitted(self._unique(rows))

    def request(self, row: TraceRow, block_tokens: int) -> ScheduledRequest:
        return ScheduledRequest(
            id=row.id,
            at_s=row.t,
            prompt_tokens=row.prompt_tokens,
            max_tokens=row.output_tokens,
            prompt_seed=random.Random(f"{self.seed}/{row.id}").getrandbits(48),
            kind="trace",
            measured=row.t >= self.options.warm_up_s,
            prefix=row.prefix if block_tokens else (),
            prefix_block_tokens=block_tokens,
            cancel_s=row.cancel_s,
            priority=row.priority or 0,
            user=row.user,
        )

    def _note(self, count: int, what: str) -> None:
        if count:
            self.notes.append(f"{count} {what}")

    def _without_failed(self, rows: list[TraceRow]) -> list[TraceRow]:
        kept = [row for row in rows if row.output_tokens > 0 and row.prompt_tokens > 0]
        self._note(len(rows) - len(kept), "requests without prompt or answer left out")
        return kept

    def _sorted(self, rows: list[TraceRow]) -> list[TraceRow]:
        ordered = sorted(rows, key=lambda row: row.t)
        moved = sum(a is not b for a, b in zip(rows, ordered, strict=True))
        self._note(moved, "requests were out of order; sorted by time")
        return ordered

    def _spread(self, rows: list[TraceRow]) -> list[TraceRow]:
        """Stamps in whole seconds would send a second's requests at once: spreads them over the second."""
        whole = sum(row.t == int(row.t) for row in rows)
        if len(rows) < 10 or whole < _QUANTISED_SHARE * len(rows):
            return rows
        self.notes.append("time stamps are whole seconds; requests spread evenly at random within each")
        rng = random.Random(f"{self.seed}/spread")
        spread = [replace(row, t=row.t + rng.random()) if row.t == int(row.t) else row for row in rows]
        return sorted(spread, key=lambda row: row.t)

    def _window(self, rows: list[TraceRow]) -> list[TraceRow]:
        start_s, end_s = self.options.start_s, self.options.end_s
        return [row for row in rows if row.t >= start_s and (end_s is None or row.t < end_s)]

    def _keeps(self, row: TraceRow) -> bool:
        whose = row.user or row.session or row.id
        return random.Random(f"{self.seed}/keep/{whose}").random() < self.options.keep_share

    def _timed(self, rows: list[TraceRow]) -> list[TraceRow]:
        """Shortens silences, then applies the speed; the window's start is the replay's zero."""
        timed, before_s, now_s = [], self.options.start_s, 0.0
        for row in rows:
            gap_s = row.t - before_s
            now_s += gap_s if self.options.max_idle_s is None else min(gap_s, self.options.max_idle_s)
            before_s = row.t
            timed.append(replace(row, t=now_s / self.options.speed))
        return timed

    def _unique(self, rows: list[TraceRow]) -> list[TraceRow]:
        seen: Counter[str] = Counter()
        unique = []
        for row in rows:
            seen[row.id] += 1
            unique.append(row if seen[row.id] == 1 else replace(row, id=f"{row.id}~{seen[row.id]}"))
        self._note(sum(count - 1 for count in seen.values()), "duplicate ids renamed")
        return unique

    def _fitted(self, rows: list[TraceRow]) -> list[TraceRow]:
        fitted = [self._fit(row) for row in rows]
        cut = sum(a != b for a, b in zip(rows, fitted, strict=True))
        self._note(cut, "requests cut to the context or to the longest answer allowed")
        return fitted

    def _fit(self, row: TraceRow) -> TraceRow:
        output = min(row.output_tokens, self.options.max_output_tokens or row.output_tokens)
        if self.options.context_tokens is None:
            return replace(row, output_tokens=output)
        output = min(output, self.options.context_tokens // 2)
        prompt = min(row.prompt_tokens, self.options.context_tokens - output)
        return replace(row, output_tokens=output, prompt_tokens=prompt)


def _long_threshold(requests: Sequence[ScheduledRequest]) -> int:
    threshold = nearest_rank([request.prompt_tokens for request in requests], _LONG_SHARE)
    return max(1, int(threshold or 1))
