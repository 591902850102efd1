"""The whole API without a model: a device that only takes time, in real time.

Lengths and timings are as a cost model says; tokens are pseudo-random but repeat for the same seed and
prompt. For trying the server out, for the tuner's own tests, and for ours.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.core.cost_model import CostModel, Work
from engine.core.executor import CheckpointSizes, ModelInfo
from engine.core.plan import Keep, PrefillChunk, Restore
from engine.core.request import Request

# About an 8B-class 4-bit model on a laptop GPU: 8,000 tokens in 3.1 s unchunked, and with three streams
# a worst pause of 0.9 / 0.5 / 0.2 s at chunks of 2,048 / 1,024 / 256. Source: a published
# table for an M5 Max.
LAPTOP_GPU = CostModel(
    chunk_s=0.025,
    prefill_token_s=3.0e-4,
    prefill_token_depth_s=2.0e-8,
    decode_s=0.015,
    decode_row_s=0.002,
    decode_kv_token_s=2.0e-7,
)
# The same model's keys and values: 32 layers, 8 heads of 128, two bytes each.
_CHECKPOINTS = CheckpointSizes(token_bytes=131_072, capacity_bytes=8 << 30)
SIM_MODEL = ModelInfo(
    name="sim", context_tokens=131_072, kv_capacity_tokens=262_144, checkpoints=_CHECKPOINTS
)
VOCABULARY = 49_152


@dataclass(slots=True)
class _Row:
    prompt: Sequence[int]
    seed: int
    depth: int = 0
    num_tokens: int = 0

    def next_token(self) -> int:
        self.num_tokens += 1
        return zlib.crc32(f"{self.seed}:{self.num_tokens}".encode()) % VOCABULARY


@dataclass(frozen=True, slots=True)
class _Ticket:
    ends_at_s: float
    tokens: tuple[int, ...]


class RealTimeExecutor:
    """Runs steps one after the other on a device that is busy for as long as the cost model says.

    Args:
        clock, sleep: real time, unless a test says otherwise.
    """

    def __init__(
        self,
        model: ModelInfo = SIM_MODEL,
        costs: CostModel = LAPTOP_GPU,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._model = model
        self._costs = costs
        self._clock = clock
        self._sleep = sleep
        self._rows: dict[str, _Row] = {}
        self._free_at_s = 0.0

    @property
    def info(self) -> ModelInfo:
        return self._model

    @property
    def runs_ahead(self) -> bool:
        return True

    def start(self, request: Request) -> None:
        seed = request.sampling.seed
        self._rows[request.id] = _Row(request.prompt, _hash(request.prompt) if seed is None else seed)

    def restore(self, restore: Restore) -> None:
        self._rows[restore.request_id].depth = restore.num_tokens

    def keep(self, keep: Keep) -> None:
        """A checkpoint costs the simulated device nothing."""

    def drop(self, checkpoint: int) -> None:
        """Nothing was kept."""

    def release(self, request_id: str) -> None:
        self._rows.pop(request_id, None)

    def launch(self, decode: tuple[str, ...], prefill: tuple[PrefillChunk, ...]) -> _Ticket:
        writing = [self._rows[request_id] for request_id in decode]
        for row in writing:
            row.depth += 1
        for chunk in prefill:
            self._rows[chunk.request_id].depth += chunk.num_tokens
        work = Work.of_step([row.depth for row in writing], prefill, self._model.one_pass)
        self._free_at_s = max(self._free_at_s, self._clock()) + self._costs.seconds(work)
        completed = [self._rows[chunk.request_id] for chunk in prefill if chunk.completes_prompt]
        return _Ticket(self._free_at_s, tuple(row.next_token() for row in (*writing, *completed)))

    def wait_nearly(self, ticket: _Ticket) -> None:
        left_s = ticket.ends_at_s - self._clock()
        if left_s > 0:
            self._sleep(left_s)

    def wait(self, ticket: _Ticket) -> tuple[int, ...]:
        self.wait_nearly(ticket)
        return ticket.tokens

    def close(self) -> None:
        self._rows.clear()


def _hash(prompt: Sequence[int]) -> int:
    return zlib.crc32(",".join(map(str, prompt)).encode())


class WordTokenizer:
    """One token a word. A word "w123" is token 123, any other a hash; so written text reads back as the
    very tokens that wrote it.
    """

    eos_tokens: frozenset[int] = frozenset({VOCABULARY})
    fingerprint: str = ""

    def encode(self, text: str) -> list[int]:
        return [_word_token(word) for word in text.split()]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        words = (f"<{message['role']}> {message['content']}" for message in messages)
        return self.encode(" ".join(words) + " <assistant>")

    def boundaries(self, messages: Sequence[Mapping[str, str]], tokens: Sequence[int]) -> tuple[int, ...]:
        first = len(messages[0]["content"].split()) + 1
        return tuple(sorted({first, len(tokens) - 1}))

    def detokenizer(self) -> WordDetokenizer:
        return WordDetokenizer()


class WordDetokenizer:
    """Writes each token as " w<id>"."""

    def push(self, token: int) -> str:
        return f" w{token}"

    def finish(self) -> str:
        return ""


_OWN_WORD = re.compile(r"w([0-9]{1,5})")


def _word_token(word: str) -> int:
    own = _OWN_WORD.fullmatch(word)
    return (int(own[1]) if own else zlib.crc32(word.encode())) % VOCABULARY


class SimBackend:
    """The simulated device and its tokenizer."""

    def __init__(self, model: ModelInfo = SIM_MODEL, costs: CostModel = LAPTOP_GPU) -> None:
        self.tokenizer = WordTokenizer()
        self.num_token_ids: int | None = VOCABULARY
        self._model = model
        self._costs = costs

    def load(self) -> RealTimeExecutor:
        return RealTimeExecutor(self._model, self._costs)
