"""The executor port on MLX."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from engine.core.executor import ModelInfo
from engine.core.plan import Keep, PrefillChunk, Restore
from engine.core.request import Request
from engine.mlx_backend import cuda_attention, launches
from engine.mlx_backend.checkpoints import Checkpoints
from engine.mlx_backend.device import on_cpu, on_cuda
from engine.mlx_backend.forward import Forward, Segment
from engine.mlx_backend.layered import PassUnderWay, Share, marker, share_of, state_of
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
# Layers of a chunk that are launched first: they must outlast the launch of the others, and fit what MLX
# takes at once (ten command buffers, about one a layer: `launches`). Chosen, not measured: six of 32.
_FIRST_SHARE = 0.2
# A step of many tokens would leave next to no layer, and one of few nearly all. Chosen, not measured.
_LEAST_LEFT_SHARE, _MOST_LEFT_SHARE = 0.1, 0.5


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
            num_layers=forward.num_layers,
        )
        self._forward: Forward | None = forward
        self._rows: dict[str, Row] = {}
        self._passes: dict[str, PassUnderWay] = {}
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
        assert keep.request_id not in self._passes, "a pass is under way"
        launches.start(self._checkpoints.keep(keep, self._rows[keep.request_id].caches))

    def drop(self, checkpoint: int) -> None:
        self._checkpoints.drop(checkpoint)

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of all checkpoints together."""
        return self._checkpoints.num_bytes

    def release(self, request_id: str) -> None:
        self._rows.pop(request_id, None)
        self._passes.pop(request_id, None)

    def launch(self, decode: tuple[str, ...], prefill: tuple[PrefillChunk, ...]) -> launches.Ticket:
        writing = [self._rows[request_id] for request_id in decode]
        reading = [(self._rows[chunk.request_id], chunk) for chunk in prefill]
        shares = [self._share(row, chunk) for row, chunk in reading if chunk.layered]
        whole = [(row, chunk) for row, chunk in reading if not chunk.layered]
        tokens = self._read(writing, whole)
        if any(chunk.layered and chunk.completes_prompt for _, chunk in reading):
            drawn = [*writing, *(row for row, chunk in reading if chunk.completes_prompt)]
            tokens = mx.concatenate([_last_token(row) for row in drawn])
        ticket = launches.Ticket(
            tokens=tokens,
            state=state_of([*writing, *(row for row, _ in whole)]) + [a for s in shares for a in s.state],
            ends=[share.last for share in shares] + [marker(row.caches[-1]) for row, _ in whole[-1:]],
            cuts=() if on_cpu() else _cuts(len(writing), shares, whole),
        )
        launches.launch(ticket)
        return ticket

    def _share(self, row: Row, chunk: PrefillChunk) -> Share:
        """The chunk, which begins the row's pass or goes on with it."""
        layered, row_id = chunk.layered, chunk.request_id
        assert layered is not None
        if chunk.start == layered.start:
            self._passes[row_id] = PassUnderWay(self._ready(), row, layered)
        ends = chunk.end == layered.end
        return share_of(self._passes.pop(row_id) if ends else self._passes[row_id], chunk)

    def _read(self, writing: Sequence[Row], whole: Sequence[tuple[Row, PrefillChunk]]) -> mx.array | None:
        """The chunks and a token of each row that writes, in one pass; returns the tokens drawn."""
        if not writing and not whole:
            return None
        segments = [Segment(_last_token(row), row.caches) for row in writing]
        segments += [_segment(row, chunk) for row, chunk in whole]
        logits = self._ready().read(segments)
        completed = [row for row, chunk in whole if chunk.completes_prompt]
        return None if logits is None else draw(logits, [*writing, *completed])

    def launch_rest(self, ticket: launches.Ticket) -> None:
        launches.launch_rest(ticket)

    def wait_nearly(self, ticket: launches.Ticket) -> None:
        launches.wait_nearly(ticket)

    def wait(self, ticket: launches.Ticket) -> tuple[int, ...]:
        return launches.wait(ticket)

    def close(self) -> None:
        self._rows.clear()
        self._passes.clear()
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


def _cuts(
    num_writing: int, shares: Sequence[Share], whole: Sequence[tuple[Row, PrefillChunk]]
) -> tuple[mx.array, ...]:
    """Where a few of the step's layers are done, and where most of what it reads is. A step that only writes
    is not cut.
    """
    alone = not num_writing and not whole and len(shares) == 1
    cuts = [cut for share in shares[:1] for cut in share.cuts(alone)]
    cuts += [share.last for share in shares[1:]]
    if whole:
        caches = whole[-1][0].caches
        last = len(caches) - 1
        num_tokens = num_writing + sum(chunk.num_tokens for _, chunk in whole)
        first, most = int(last * _FIRST_SHARE), int(last * (1 - _left_share(num_tokens)))
        cuts += [marker(caches[first]), marker(caches[most])]
    return tuple(cuts)


def _left_share(num_tokens: int) -> float:
    """The share of a step's layers that is left when the next one is launched."""
    return min(_MOST_LEFT_SHARE, max(_LEAST_LEFT_SHARE, _LEFT_TOKENS / num_tokens))
