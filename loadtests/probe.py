"""Measures what a target can do, to size what profiles leave `auto`."""

from __future__ import annotations

import itertools
import json
import secrets
import threading
from statistics import median

from engine.core.records import Outcome
from loadtests.errors import TargetError
from loadtests.prompts import PromptBook, bodies
from loadtests.schedule import ScheduledRequest, Sizing
from loadtests.sse_client import ChatStream
from loadtests.target import Target, as_target, model_name

_STREAMS = 3
_STREAM_TOKENS = 16
_FIRST_TOKENS = 128
_MIN_PREFILL_S = 0.5  # a shorter prefill is mostly fixed cost and says little of the rate
_GROWTH = 4


def probe_sizing(
    target: Target | str, *, slo_pause_s: float, context_tokens: int, book: PromptBook | None = None
) -> Sizing:
    """Reads prompts of growing length alone, then a few short streams together. Takes a few seconds.

    The target should be idle, and its config one that reads a prompt whole when nobody streams.

    Raises:
        TargetError: the target does not answer, or not with a stream.
    """
    probe = _Probe(as_target(target), book)
    return Sizing(
        prefill_tokens_per_s=probe.prefill_rate(context_tokens),
        decode_step_s=probe.decode_step_s(),
        context_tokens=context_tokens,
        slo_pause_s=slo_pause_s,
    )


class _Probe:
    def __init__(self, target: Target, book: PromptBook | None) -> None:
        self._target, self._model = target, model_name(target)
        self._book = book or PromptBook(target)

    def prefill_rate(self, context_tokens: int) -> float:
        """Tokens per second of the first prompt that takes long enough, or fills half the context."""
        self._finish(self._stream(64, 2))  # whatever the first request of all has to warm up
        tokens = _FIRST_TOKENS
        while True:
            seconds = self._prefill_s(tokens)
            if seconds >= _MIN_PREFILL_S or tokens * _GROWTH > context_tokens // 2:
                return tokens / seconds
            tokens *= _GROWTH

    def decode_step_s(self) -> float:
        """The median gap of a few streams that run together."""
        streams = [self._stream(64, _STREAM_TOKENS) for _ in range(_STREAMS)]
        threads = [threading.Thread(target=stream.run, daemon=True) for stream in streams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gaps = [gap for stream in streams for gap in _gaps_s(self._check(stream))]
        return max(median(gaps), 1e-4)

    def _prefill_s(self, tokens: int) -> float:
        stream = self._finish(self._stream(tokens, 2))
        assert stream.sent_at_ns is not None
        return max((stream.events[0][0] - stream.sent_at_ns) / 1e9, 1e-4)

    def _stream(self, prompt_tokens: int, max_tokens: int) -> ChatStream:
        request = ScheduledRequest(
            id="probe",
            at_s=0.0,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            prompt_seed=prompt_tokens,
        )
        prompt = self._book.prompt(request, f"probe {secrets.token_hex(4)}")
        body = bodies([request], {"probe": prompt}, self._target, self._model)["probe"]
        return ChatStream(self._target.url, self._target.request_headers(), json.dumps(body).encode())

    def _finish(self, stream: ChatStream) -> ChatStream:
        stream.run()
        return self._check(stream)

    def _check(self, stream: ChatStream) -> ChatStream:
        if stream.outcome is not Outcome.COMPLETED or len(stream.events) < 2:
            said = stream.fault or f"{len(stream.events)} events with content"
            raise TargetError(f"{self._target.url} did not stream an answer: {said}")
        return stream


def _gaps_s(stream: ChatStream) -> list[float]:
    stamps = [at_ns for at_ns, _, _ in stream.events]
    return [(later - earlier) / 1e9 for earlier, later in itertools.pairwise(stamps)]
