"""A trace column by column: what the doctor keeps of each row, 80 bytes, to compute on whole columns."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.core.errors import TraceError
from engine.core.trace import TraceRow
from loadtests.doctor.reuse import PrefixReuse

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NOBODY = 0  # stands for no name; a name that hashes to it is one in 2^64
UNKNOWN = -1
_MOST_TOKENS, _MOST_S = 10**12, 1e15


@dataclass(frozen=True, slots=True)
class Columns:
    """One entry a row, in file order.

    Attributes:
        whole_s, think_s: NaN where the row does not say.
        cached: `UNKNOWN` where it does not.
        ids, after, users, sessions: 64-bit hashes of names, `NOBODY` where there is none; equal ones mean
            equal names but for a chance of about n² / 2^65.
        statuses: how often each original status came.
        cancelled: whose client left.
    """

    t: Floats
    prompt: Ints
    output: Ints
    whole_s: Floats
    think_s: Floats
    cached: Ints
    ids: Ints
    after: Ints
    users: Ints
    sessions: Ints
    cancelled: NDArray[np.bool_]
    statuses: Counter[str]

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Which rows a replay sends."""
        return (self.prompt > 0) & ((self.output > 0) | self.cancelled)


def read_columns(rows: Iterable[TraceRow], reuse: PrefixReuse) -> Columns:
    """All rows as columns; their prefixes go into `reuse`.

    Raises:
        TraceError: a time or length that nobody can mean, and whatever comes out of `rows`.
    """
    t, whole_s, think_s = array("d"), array("d"), array("d")
    prompt, output, cached = array("q"), array("q"), array("q")
    ids, after, users, sessions = array("q"), array("q"), array("q"), array("q")
    cancelled, statuses = bytearray(), Counter[str]()
    for row in rows:
        if row.t > _MOST_S or row.prompt_tokens > _MOST_TOKENS or row.output_tokens > _MOST_TOKENS:
            raise TraceError(
                f"request {row.id}: no time beyond {_MOST_S:g} s and no length beyond {_MOST_TOKENS:g} "
                "tokens can be meant; is the unit right?"
            )
        t.append(row.t)
        prompt.append(row.prompt_tokens)
        output.append(row.output_tokens)
        think_s.append(math.nan if row.think_s is None else min(row.think_s, _MOST_S))
        cached.append(UNKNOWN if row.cached is None else min(row.cached, row.prompt_tokens))
        ids.append(hash(row.id))
        after.append(hash(row.after) if row.after else NOBODY)
        users.append(hash(row.user) if row.user else NOBODY)
        sessions.append(hash(row.session) if row.session else NOBODY)
        original = row.orig
        if original is None:
            whole_s.append(math.nan)
        else:
            whole_s.append(math.nan if original.e2e_s is None else min(original.e2e_s, _MOST_S))
            if original.status is not None:
                statuses[str(original.status)] += 1
        cancelled.append(row.cancel_s is not None)
        if row.prefix:
            reuse.add(row.prefix, row.prompt_tokens)
    return Columns(
        t=_floats(t),
        prompt=_whole(prompt),
        output=_whole(output),
        whole_s=_floats(whole_s),
        think_s=_floats(think_s),
        cached=_whole(cached),
        ids=_whole(ids),
        after=_whole(after),
        users=_whole(users),
        sessions=_whole(sessions),
        cancelled=np.frombuffer(cancelled, dtype=np.bool_),
        statuses=statuses,
    )


def _floats(values: array[float]) -> Floats:
    return np.frombuffer(values, dtype=np.float64)


def _whole(values: array[int]) -> Ints:
    return np.frombuffer(values, dtype=np.int64)
