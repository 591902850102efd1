"""Plays requests through an executor as the pipeline would, a step at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from engine.core.executor import Executor
from engine.core.plan import LayeredPass, PrefillChunk
from engine.core.request import Request, SamplingParams


def make_request(
    request_id: str, prompt: Sequence[int], max_tokens: int = 16, sampling: SamplingParams | None = None
) -> Request:
    return Request(
        id=request_id,
        prompt=prompt,
        max_tokens=max_tokens,
        arrived_at_s=0.0,
        sampling=sampling or SamplingParams(),
    )


def chunks_of(
    request: Request, chunk_tokens: int, start: int = 0, end: int | None = None
) -> list[PrefillChunk]:
    """Tokens `start … end` of the request's prompt (all of them) cut into chunks of `chunk_tokens`, the last
    one shorter.
    """
    total = request.num_prompt_tokens
    end = total if end is None else end
    sizes = [(first, min(chunk_tokens, end - first)) for first in range(start, end, chunk_tokens)]
    return [PrefillChunk(request.id, first, size, first + size == total) for first, size in sizes]


def shares_of(
    request: Request,
    pass_tokens: int,
    num_layers: int,
    step_layers: int,
    start: int = 0,
    end: int | None = None,
) -> list[PrefillChunk]:
    """The same tokens in layered passes of `pass_tokens`, of which a step does `step_layers` at most."""
    chunks = []
    for chunk in chunks_of(request, pass_tokens, start, end):
        layered = LayeredPass(chunk.start, chunk.num_tokens, num_layers)
        position = chunk.start
        while position < chunk.end:
            halt = layered.halt(layered.layers_at(position) + step_layers)
            completes = chunk.completes_prompt and halt == chunk.end
            chunks.append(PrefillChunk(request.id, position, halt - position, completes, layered))
            position = halt
    return chunks


class Driver:
    """Launches steps one ahead of waiting for them, and collects every row's tokens."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.tokens: dict[str, list[int]] = {}
        self._waiting: list[tuple[Any, tuple[str, ...]]] = []

    def start(self, *requests: Request) -> None:
        for request in requests:
            self.executor.start(request)
            self.tokens[request.id] = []

    def prefill(self, *chunks: PrefillChunk) -> None:
        self.step((), chunks)

    def read(self, request: Request, chunk_tokens: int | None = None) -> None:
        """Starts the request and reads its whole prompt."""
        self.start(request)
        for chunk in chunks_of(request, chunk_tokens or request.num_prompt_tokens):
            self.prefill(chunk)

    def decode(self, *request_ids: str, steps: int = 1) -> None:
        for _ in range(steps):
            self.step(request_ids)

    def step(self, decode: tuple[str, ...], prefill: tuple[PrefillChunk, ...] = ()) -> None:
        """Rows that write beside chunks that are read."""
        completed = tuple(chunk.request_id for chunk in prefill if chunk.completes_prompt)
        ticket = self.executor.launch(decode, prefill)
        self._waiting.append((ticket, decode + completed))
        self._settle(keep=1)
        self.executor.launch_rest(ticket)

    def release(self, *request_ids: str) -> None:
        for request_id in request_ids:
            self.executor.release(request_id)

    def finish(self) -> dict[str, list[int]]:
        """Waits for everything; returns the tokens of every request."""
        self._settle(keep=0)
        return self.tokens

    def _settle(self, keep: int) -> None:
        while len(self._waiting) > keep:
            ticket, rows = self._waiting.pop(0)
            for request_id, token in zip(rows, self.executor.wait(ticket), strict=True):
                self.tokens[request_id].append(token)


def tokens_alone(executor: Executor, request: Request, chunk_tokens: int | None = None) -> list[int]:
    """All `max_tokens` tokens of a request that has the executor to itself."""
    driver = Driver(executor)
    driver.read(request, chunk_tokens)
    driver.decode(request.id, steps=request.max_tokens - 1)
    tokens = driver.finish()[request.id]
    driver.release(request.id)
    return tokens


def random_prompt(seed: int, length: int, vocab: int = 256) -> list[int]:
    """Token ids that look random and are the same each time."""
    state, tokens = seed + 1, []
    for _ in range(length):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        tokens.append((state >> 33) % vocab)
    return tokens


def all_equal(values: Iterable[object]) -> bool:
    first, *others = values
    return all(value == first for value in others)
