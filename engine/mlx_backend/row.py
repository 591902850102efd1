"""One request's state on the device."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from engine.core.request import Request
from engine.mlx_backend.sampling import penalise, random_keys, sample


class Row:
    """A request's caches, its last token and what sampling must remember.

    Attributes:
        caches: one per layer, batch size 1.
        last_token: `(1,)`, possibly not computed yet; None until the prompt is complete.
        num_tokens: output tokens drawn so far.
    """

    def __init__(self, request: Request, caches: list[Any], vocab: int) -> None:
        self.request = request
        self.caches = caches
        self.last_token: mx.array | None = None
        self.num_tokens = 0
        seed = request.sampling.seed
        self.seed = secrets.randbits(63) if seed is None else seed
        self.seen = self._prompt_tokens(vocab) if request.sampling.repetition_penalty != 1 else None

    def _prompt_tokens(self, vocab: int) -> mx.array:
        seen = mx.zeros((1, vocab), mx.bool_)
        seen[0, mx.array(list(self.request.prompt))] = True
        return seen


def draw(logits: mx.array, rows: Sequence[Row]) -> mx.array:
    """Draws each row's next token from `logits` `(batch, vocab)` and remembers it; returns `(batch,)`."""
    params = [row.request.sampling for row in rows]
    keys = random_keys([row.seed for row in rows], [row.num_tokens for row in rows])
    tokens = sample(_penalised(logits, rows), params, keys)
    for index, row in enumerate(rows):
        _remember(row, tokens[index : index + 1])
    return tokens


def _remember(row: Row, token: mx.array) -> None:
    row.last_token = token
    row.num_tokens += 1
    if row.seen is not None:
        row.seen[0, token] = True


def _penalised(logits: mx.array, rows: Sequence[Row]) -> mx.array:
    if all(row.seen is None for row in rows):
        return logits
    nothing = mx.zeros((1, logits.shape[-1]), mx.bool_)
    seen = mx.concatenate([nothing if row.seen is None else row.seen for row in rows])
    penalties = mx.array([row.request.sampling.repetition_penalty for row in rows], dtype=logits.dtype)
    return penalise(logits, seen, penalties[:, None])
