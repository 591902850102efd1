"""What the turns of a session have to do with one another: which follows which, after how long, and what of
its prompt a turn has from the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from engine.core.trace import TraceRow
from loadtests.traces.blocks import GrowingPrompts, covering

# For prompts whose trace names no blocks; small enough that a turn shares all but the last few tokens.
BLOCK_TOKENS = 64


def follow_on(rows: Sequence[TraceRow]) -> Iterator[TraceRow]:
    """Names the turn before, and the time since its end, where a trace tells only of sessions.

    A row that has a number in its session but no `after` overlapped with the one before and stays alone.
    The time since an end that was not recorded is the time since that turn was sent: too long by its answer.
    """
    latest: dict[str, TraceRow] = {}
    by_id: dict[str, TraceRow] = {}
    for row in rows:
        before = latest.get(row.session or "") if row.turn is None else None
        if row.after is None and before is not None:
            row = replace(row, after=before.id)
        if row.after is not None and row.think_s is None:
            row = replace(row, think_s=_since_end(row, by_id.get(row.after)))
        if row.session:
            latest[row.session] = row
        by_id[row.id] = row
        yield row


def _since_end(row: TraceRow, before: TraceRow | None) -> float:
    if before is None:
        return 0.0
    answered_s = before.orig.e2e_s if before.orig else None
    return max(0.0, row.t - before.t - (answered_s or 0.0))


def share_blocks(rows: Sequence[TraceRow], block_tokens: int) -> list[tuple[TraceRow, int]]:
    """The rows with the names of their prompts' blocks, each with the tokens of a block.

    Named blocks say themselves what a turn has from the one before. Where they are missing, a turn is the
    prompt before plus new text of the length that is missing, since that is what a chat client sends; a turn
    that is no longer than the one before begins anew.

    Args:
        block_tokens: per block that the trace names.
    """
    named: dict[str, tuple[TraceRow, int]] = {}
    for row in rows:
        if row.prefix and block_tokens:
            named[row.id] = (_whole(row, row.prefix, block_tokens), block_tokens)
        elif row.session or row.after:
            names = _grown(row, *named.get(row.after or "", (None, 0)))
            named[row.id] = (_whole(row, names, BLOCK_TOKENS), BLOCK_TOKENS)
        else:
            named[row.id] = (replace(row, prefix=()), 0)
    return _joined(list(named.values()))


def _whole(row: TraceRow, names: tuple[str, ...], block_tokens: int) -> TraceRow:
    """With names for all of its prompt, the partial last block too: a later turn may grow into it."""
    return replace(row, prefix=covering(names, row.prompt_tokens, block_tokens, f"of {row.id}"))


def _grown(row: TraceRow, before: TraceRow | None, block_tokens: int) -> tuple[str, ...]:
    given = before.prefix if before and block_tokens == BLOCK_TOKENS else ()
    shared = before.prompt_tokens if before and row.prompt_tokens > before.prompt_tokens else 0
    return GrowingPrompts(f"of {row.id}", BLOCK_TOKENS, given).turn(row.prompt_tokens, shared)


def _joined(named: list[tuple[TraceRow, int]]) -> list[tuple[TraceRow, int]]:
    """Lets a prompt's last, partial block be the beginning of the block that continues it.

    A trace names a partial block by what it holds, so that its name says nothing of the block it grows into.
    """
    place = {row.id: n for n, (row, _) in enumerate(named)}
    for row, block in reversed(named):
        n = place.get(row.after or "")
        if n is not None and named[n][1] == block > 0:
            named[n] = (_begun(named[n][0], row, block), block)
    return named


def _begun(before: TraceRow, row: TraceRow, block: int) -> TraceRow:
    whole, part = divmod(before.prompt_tokens, block)
    goes_on = row.prompt_tokens > before.prompt_tokens and before.prefix[:whole] == row.prefix[:whole]
    return replace(before, prefix=row.prefix[: whole + 1]) if part and goes_on else before
