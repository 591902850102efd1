"""The whole API without a model: a device that only takes time, in real time.

Lengths and timings are as a cost model says; tokens are pseudo-random but repeat for the same seed and
prompt. For trying the server out, for the tuner's own tests, and for ours.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from engine.core.cost_model import CostModel
from engine.core.executor import CheckpointSizes, ModelInfo
from engine.core.request import Request
from engine.sim.executor import SimExecutor

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
    name="sim", context_tokens=131_072, kv_capacity_tokens=262_144, checkpoints=_CHECKPOINTS, num_layers=32
)
VOCABULARY = 49_152


class RealClock:
    """Seconds as they pass: waiting for the device is sleeping."""

    def __call__(self) -> float:
        return time.perf_counter()

    def advance_to(self, at_s: float) -> None:
        left_s = at_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)


def pseudo_random_answer(request: Request) -> Iterator[int]:
    """Tokens that follow from the request's seed, or without one from its prompt."""
    seed = request.sampling.seed
    seed = _hash(request.prompt) if seed is None else seed
    return (zlib.crc32(f"{seed}:{n}".encode()) % VOCABULARY for n in count(1))


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

    def load(self) -> SimExecutor:
        return SimExecutor(self._model, self._costs, RealClock(), answer=pseudo_random_answer)
