"""What work costs on one machine with one model, in seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from engine.core.plan import LayeredPass, PrefillChunk

# Tokens of a chunk where work costs nothing.
_NO_LIMIT = 1 << 30
# Seconds of a token where work costs nothing, so that something can be divided by them.
_LEAST_S = 1e-12


@dataclass(frozen=True, slots=True)
class Work:
    """What the device does in one step, as the features its cost is linear in.

    Attributes:
        num_chunks: passes for chunks; of a layered one the share that is done.
        prefill_token_depths: sum over chunks of tokens × mean context depth of the chunk's tokens;
            attention makes a late chunk dearer by this much.
        num_decodes: passes over the weights for rows alone; 0 where they share the chunks' pass.
        decode_kv_tokens: KV tokens read by the decode rows together.
    """

    num_chunks: float = 0
    prefill_tokens: int = 0
    prefill_token_depths: float = 0.0
    num_decodes: int = 0
    decode_rows: int = 0
    decode_kv_tokens: int = 0

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.num_chunks + other.num_chunks,
            self.prefill_tokens + other.prefill_tokens,
            self.prefill_token_depths + other.prefill_token_depths,
            self.num_decodes + other.num_decodes,
            self.decode_rows + other.decode_rows,
            self.decode_kv_tokens + other.decode_kv_tokens,
        )

    def features(self) -> tuple[float, ...]:
        """The values above, in `CostModel`'s order of terms."""
        return (
            self.num_chunks,
            self.prefill_tokens,
            self.prefill_token_depths,
            self.num_decodes,
            self.decode_rows,
            self.decode_kv_tokens,
        )

    @classmethod
    def of_prefill(cls, chunks: Iterable[PrefillChunk]) -> Self:
        num_passes, num_tokens, token_depths = 0.0, 0, 0.0
        for chunk in chunks:
            whole = chunk.layered or chunk
            num_passes += chunk.num_tokens / whole.num_tokens
            num_tokens += chunk.num_tokens
            token_depths += chunk.num_tokens * (whole.start + whole.num_tokens / 2)
        return cls(num_passes, num_tokens, token_depths)

    @classmethod
    def of_decode(cls, depths: Iterable[int]) -> Self:
        """Args: depths: KV tokens of each row."""
        depths = tuple(depths)
        return cls(num_decodes=1 if depths else 0, decode_rows=len(depths), decode_kv_tokens=sum(depths))

    @classmethod
    def of_step(cls, depths: Iterable[int], chunks: Iterable[PrefillChunk], one_pass: bool) -> Self:
        """Args: depths: KV tokens of each row that writes; one_pass: as of the model."""
        chunks, writing = tuple(chunks), cls.of_decode(depths)
        if not chunks:
            return writing
        shared = one_pass and any(chunk.layered is None for chunk in chunks)
        return cls.of_prefill(chunks) + writing.beside_chunks(shared)

    def beside_chunks(self, shared: bool) -> Self:
        """Rows that write, as they count in a step that reads: in a pass that they share or in their own."""
        if not shared:
            return self
        return type(self)(decode_rows=self.decode_rows, decode_kv_tokens=self.decode_kv_tokens)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds per unit of each feature of `Work`; all at least 0.

    The terms are those that explained MLX's step times best: prefill as 1 + P + P·(C + P/2) with
    6.6 % held-out error (24 % without the depth term), decode as 1 + B + ΣKV with 6.2 % (18 %).
    Source: our measurement on MLX CPU, November 2026.
    """

    chunk_s: float
    prefill_token_s: float
    prefill_token_depth_s: float
    decode_s: float
    decode_row_s: float
    decode_kv_token_s: float

    def seconds(self, work: Work) -> float:
        # By hand: a paced plan asks for a hundred steps, and simulations of hours for hundreds of thousands.
        return math.fsum(
            (
                self.chunk_s * work.num_chunks,
                self.prefill_token_s * work.prefill_tokens,
                self.prefill_token_depth_s * work.prefill_token_depths,
                self.decode_s * work.num_decodes,
                self.decode_row_s * work.decode_rows,
                self.decode_kv_token_s * work.decode_kv_tokens,
            )
        )

    def writing_seconds(self, num_rows: int, kv_tokens: int, num_decodes: int = 1) -> float:
        """`seconds` of what rows that write add to a step; by default of one that only writes."""
        return math.fsum(
            (
                self.decode_s * num_decodes,
                self.decode_row_s * num_rows,
                self.decode_kv_token_s * kv_tokens,
            )
        )

    def coefficients(self) -> tuple[float, ...]:
        return (
            self.chunk_s,
            self.prefill_token_s,
            self.prefill_token_depth_s,
            self.decode_s,
            self.decode_row_s,
            self.decode_kv_token_s,
        )

    def prefill_seconds(self, num_tokens: int, start: int = 0, chunk_tokens: int | None = None) -> float:
        """Time to read `num_tokens` from depth `start`, alone, in chunks (one chunk when None)."""
        if num_tokens <= 0:
            return 0.0
        num_chunks = 1 if not chunk_tokens else math.ceil(num_tokens / chunk_tokens)
        depth = start + num_tokens / 2
        return self.seconds(Work(num_chunks, num_tokens, num_tokens * depth))

    def layered_token_seconds(self, layered: LayeredPass) -> float:
        """What each token that a step's share of the pass counts costs; above 0."""
        return max(self.prefill_seconds(layered.num_tokens, layered.start) / layered.num_tokens, _LEAST_S)

    def max_chunk_tokens(self, budget_s: float, start: int) -> int:
        """The most tokens whose chunk at depth `start` costs at most `budget_s`; 0 when none does.

        Solves `chunk_s + P·token_s + P·(start + P/2)·depth_s = budget_s` for P.
        """
        left = budget_s - self.chunk_s
        linear = self.prefill_token_s + start * self.prefill_token_depth_s
        if left <= 0:
            return 0
        # Not the usual form of the root: there a depth term that is next to nothing takes all digits with it.
        slope = linear + math.sqrt(linear * linear + 2 * self.prefill_token_depth_s * left)
        return int(min(2 * left / slope, _NO_LIMIT)) if slope > 0 else _NO_LIMIT


# Used until step records say better. About a 135M model in float32 on two CPU cores (our measurement,
# November 2026): slower than nearly every real set-up, so that first predictions err on the safe side.
UNFITTED = CostModel(
    chunk_s=0.02,
    prefill_token_s=0.004,
    prefill_token_depth_s=3e-6,
    decode_s=0.05,
    decode_row_s=0.01,
    decode_kv_token_s=5e-6,
)
