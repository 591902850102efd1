"""The executor port on MLX."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache

from engine.core.executor import ModelInfo
from engine.core.plan import Keep, PrefillChunk, Restore
from engine.core.request import Request
from engine.mlx_backend import cuda_attention, launches
from engine.mlx_backend.checkpoints import Checkpoints
from engine.mlx_backend.device import on_cpu, on_cuda
from engine.mlx_backend.forward import Forward, Segment
from engine.mlx_backend.model import LoadedModel
from engine.mlx_backend.row import Row, draw

# Output tokens a cache is preallocated for; a longer answer grows it by as much at a time. Chosen, not
# measured: most answers end long before `max_tokens`, and memory for all of it would lie idle.
_PREALLOCATED_OUTPUT_TOKENS: int = KVCache.step

# Tokens' worth of a step that is left when the next one is launched, so that its first part arrives in time.
# On an H200 these take 10 ms, and launching a first part 7 to 19. With 128, TTFT in chunks of 1,024 was 9 %
# longer, and 18 % in chunks of 512 beside three streams (our measurement, November 2026). Not measured on
# Metal: there a newcomer may wait so much longer, and nobody else.
_LEFT_TOKENS = 320
# A step of many tokens would leave next to no layer, and one of few nearly all. Chosen, not measured.
_LEAST_LEFT_SHARE, _MOST_LEFT_SHARE = 0.1, 0.5
# Layers that are launched first: they must outlast the launch of the others, and fit what MLX takes at once
# (ten command buffers, about one a layer: `launches`). Chosen, not measured: of 32 layers these are six.
_FIRST_SHARE = 0.2


class MlxExecutor:
    """Runs prompts and tokens through a model on MLX. One thread owns it from load to close."""

    def __init__(self, loaded: LoadedModel) -> None:
        forward = Forward(loaded.model)
        self._info = dataclasses.replace(
            loaded.info,
            one_pass=forward.one_pass,
            batches=forward.batches,
            kv_block_tokens=KVCache.step,
            runs_ahead=not on_cpu(),
            chunk_grid_tokens=cuda_attention.GRID_TOKENS if on_cuda() else 1,
        )
        self._forward: Forward | None = forward
        self._rows: dict[str, Row] = {}
        self._checkpoints = Checkpoints()

    @property
    def info(self) -> ModelInfo:
        return self._info

    def start(self, request: Request) -> None:
        forward = self._ready()
        caches = forward.new_caches(_room_tokens(request))
        self._rows[request.id] = Row(request, caches, forward.vocab)

    def restore(self, restore: Restore) -> None:
        row = self._rows[restore.request_id]
        self._checkpoints.restore(restore, row.caches, _room_tokens(row.request))

    def keep(self, keep: Keep) -> None:
        launches.start(self._checkpoints.keep(keep, self._rows[keep.request_id].caches))

    def drop(self, checkpoint: int) -> None:
        self._checkpoints.drop(checkpoint)

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of all checkpoints together."""
        return self._checkpoints.num_bytes

    def release(self, request_id: str) -> None:
        self._rows.pop(request_id, None)

    def launch(self, decode: tuple[str, ...], prefill: tuple[PrefillChunk, ...]) -> launches.Ticket:
        writing = [self._rows[request_id] for request_id in decode]
        reading = [self._rows[chunk.request_id] for chunk in prefill]
        completed = [row for row, chunk in zip(reading, prefill, strict=True) if chunk.completes_prompt]
        segments = [Segment(_last_token(row), row.caches) for row in writing]
        segments += [_segment(row, chunk) for row, chunk in zip(reading, prefill, strict=True)]
        logits = self._ready().read(segments)
        tokens = None if logits is None else draw(logits, [*writing, *completed])
        state = _state_of([*writing, *reading])
        num_tokens = sum(segment.length for segment in segments)
        ticket = launches.Ticket(tokens, state, _end(reading), _cuts(reading, num_tokens))
        launches.launch(ticket)
        return ticket

    def launch_rest(self, ticket: launches.Ticket) -> None:
        launches.launch_rest(ticket)

    def wait_nearly(self, ticket: launches.Ticket) -> None:
        launches.wait_nearly(ticket)

    def wait(self, ticket: launches.Ticket) -> tuple[int, ...]:
        return launches.wait(ticket)

    def close(self) -> None:
        self._rows.clear()
        self._checkpoints.clear()
        self._forward = None
        mx.synchronize()
        # Without this the process can abort when it exits after a thread that used MLX has ended.
        mx.clear_streams()

    def _ready(self) -> Forward:
        assert self._forward is not None, "used after close"
        return self._forward


def _room_tokens(request: Request) -> int:
    return request.num_prompt_tokens + min(request.max_tokens, _PREALLOCATED_OUTPUT_TOKENS)


def _segment(row: Row, chunk: PrefillChunk) -> Segment:
    ids = row.request.prompt[chunk.start : chunk.start + chunk.num_tokens]
    return Segment(mx.array(list(ids)), row.caches, chunk.completes_prompt)


def _last_token(row: Row) -> mx.array:
    assert row.last_token is not None, "decode before the prompt was complete"
    return row.last_token


def _state_of(rows: Sequence[Row]) -> list[mx.array]:
    """Everything a launch leaves behind in its rows, so that no later launch has to compute it."""
    leaves = [leaf for row in rows for _, leaf in tree_flatten([cache.state for cache in row.caches])]
    seen = [row.seen for row in rows if row.seen is not None]
    return seen + [leaf for leaf in leaves if isinstance(leaf, mx.array)]


def _end(reading: Sequence[Row]) -> mx.array | None:
    return _marker(reading[-1].caches[-1]) if reading else None


def _cuts(reading: Sequence[Row], num_tokens: int) -> tuple[mx.array, mx.array] | None:
    """Where the step's last chunk has gone through a few layers, and through most of them. A step that only
    writes is not cut, nor is any on a CPU.
    """
    if not reading or on_cpu():
        return None
    caches = reading[-1].caches
    last = len(caches) - 1
    first, most = int(last * _FIRST_SHARE), int(last * (1 - _left_share(num_tokens)))
    return _marker(caches[first]), _marker(caches[most])


def _left_share(num_tokens: int) -> float:
    """The share of a step's layers that is left when the next one is launched."""
    return min(_MOST_LEFT_SHARE, max(_LEAST_LEFT_SHARE, _LEFT_TOKENS / num_tokens))


def _marker(cache: Any) -> mx.array:
    """A number that exists once the cache's layer has extended it."""
    last = [leaf for _, leaf in tree_flatten(cache.state) if isinstance(leaf, mx.array)][-1]
    return last[(0,) * last.ndim] + 0
