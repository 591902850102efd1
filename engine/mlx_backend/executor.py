"""The executor port on MLX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
from mlx.utils import tree_flatten

from engine.core.executor import ModelInfo
from engine.core.plan import PrefillChunk
from engine.core.request import Request, SamplingParams
from engine.mlx_backend.forward import Forward
from engine.mlx_backend.model import LoadedModel
from engine.mlx_backend.row import Row, draw

# Output tokens a cache is preallocated for; a longer answer grows it.
_PREALLOCATED_OUTPUT_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Ticket:
    """Launched work: what to wait for and what it returns.

    Attributes:
        tokens: the tokens drawn, `(n,)` in all.
        markers: computed when the work is. They never share memory with a cache, because a cache that
            somebody else can see is copied, not extended.
    """

    tokens: tuple[mx.array, ...]
    markers: tuple[mx.array, ...] = ()


class MlxExecutor:
    """Runs prompts and tokens through a model on MLX. One thread owns it from load to close."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._info = loaded.info
        self._forward: Forward | None = Forward(loaded.model)
        self._rows: dict[str, Row] = {}

    @property
    def info(self) -> ModelInfo:
        return self._info

    @property
    def batched(self) -> bool:
        """Whether several rows share a decode step; false for models whose caches cannot be joined."""
        return self._ready().batched

    def warmup(self) -> None:
        """Runs a prompt and a few tokens, so that no request waits for kernels to be built."""
        sampling = SamplingParams(temperature=1.0, top_p=0.9, seed=0)
        ids = tuple(f"warmup-{number}" for number in range(2))
        chunks = []
        for request_id in ids:
            prompt = [0] * min(64, self._info.context_tokens // 2)
            self.start(
                Request(id=request_id, prompt=prompt, max_tokens=2, arrived_at_s=0.0, sampling=sampling)
            )
            chunks.append(PrefillChunk(request_id, 0, len(prompt), completes_prompt=True))
        self.wait(self.launch_prefill(tuple(chunks)))
        for rows in (ids[:1], ids):
            self.wait(self.launch_decode(rows))
        for request_id in ids:
            self.release(request_id)

    def start(self, request: Request) -> None:
        forward = self._ready()
        output = min(request.max_tokens, _PREALLOCATED_OUTPUT_TOKENS)
        caches = forward.new_caches(request.num_prompt_tokens + output)
        self._rows[request.id] = Row(request, caches, forward.vocab)

    def release(self, request_id: str) -> None:
        self._rows.pop(request_id, None)

    def launch_decode(self, request_ids: tuple[str, ...]) -> Ticket:
        rows = [self._rows[request_id] for request_id in request_ids]
        last_tokens = [_last_token(row) for row in rows]
        tokens = draw(self._ready().step(last_tokens, [row.caches for row in rows]), rows)
        mx.async_eval(tokens)
        return Ticket((tokens,))

    def launch_prefill(self, chunks: tuple[PrefillChunk, ...]) -> Ticket:
        tokens: list[mx.array] = []
        markers: list[mx.array] = []
        for chunk in chunks:
            row = self._rows[chunk.request_id]
            ids = row.request.prompt[chunk.start : chunk.start + chunk.num_tokens]
            logits = self._ready().chunk(mx.array(list(ids)), row.caches)
            if chunk.completes_prompt:
                tokens.append(draw(logits, [row]))
                mx.async_eval(tokens[-1])
            else:
                markers.append(_launch_caches(row))
        return Ticket(tuple(tokens), tuple(markers))

    def wait(self, ticket: Ticket) -> tuple[int, ...]:
        mx.eval(ticket.tokens, ticket.markers)
        return tuple(int(token) for tokens in ticket.tokens for token in _as_list(tokens))

    def close(self) -> None:
        self._rows.clear()
        self._forward = None
        mx.synchronize()
        # Without this the process can abort when it exits after a thread that used MLX has ended.
        mx.clear_streams()

    def _ready(self) -> Forward:
        assert self._forward is not None, "used after close"
        return self._forward


def _last_token(row: Row) -> mx.array:
    assert row.last_token is not None, "decode before the prompt was complete"
    return row.last_token


def _as_list(tokens: mx.array) -> Sequence[int]:
    return list(tokens.tolist())


def _launch_caches(row: Row) -> mx.array:
    """Starts computing a row's caches; returns a marker that is computed with them."""
    arrays = [leaf for _, leaf in tree_flatten([c.state for c in row.caches]) if isinstance(leaf, mx.array)]
    last = arrays[-1]
    marker = last[(0,) * last.ndim] + 0
    mx.async_eval(arrays, marker)
    return marker
