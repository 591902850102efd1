"""Sizes a profile for a server that is only known by its address, with a few requests.

Rougher than the tuner's own measurement, which reads the engine's step records; any server with OpenAI's
chat route will do.
"""

from __future__ import annotations

import json
import secrets
import statistics
from itertools import pairwise

from engine.core.records import Outcome
from loadtests.client.sse_client import ChatStream
from loadtests.client.target import Target, model_card
from loadtests.errors import TargetError
from loadtests.synthesis.prompts import PromptBook, bodies
from loadtests.traffic.schedule import ScheduledRequest, Sizing

_FIRST_TOKENS = 128
_MOST_TOKENS = 16384
_LONG_ENOUGH_S = 1.0  # a prompt that takes this long is not measured by its constant costs
_STREAM_TOKENS = 16
_SAFE_CONTEXT_TOKENS = 4096  # for a server that does not say


def size_up(target: Target, book: PromptBook, slo_pause_s: float) -> Sizing:
    """Reads longer and longer prompts until one takes a second, then streams a short answer.

    Raises:
        TargetError: a request failed.
    """
    card = model_card(target)
    told = card.get("max_model_len") or card.get("context_tokens")
    context_tokens = told if isinstance(told, int) else _SAFE_CONTEXT_TOKENS
    tokens = min(_FIRST_TOKENS, context_tokens // 2)
    seconds = _first_token_s(_ask(target, book, tokens, 1))
    while seconds < _LONG_ENOUGH_S and tokens * 2 <= min(context_tokens // 2, _MOST_TOKENS):
        tokens *= 2
        seconds = _first_token_s(_ask(target, book, tokens, 1))
    stamps = [at_ns for at_ns, _, _ in _ask(target, book, min(64, tokens), _STREAM_TOKENS).events]
    gaps = [(later - earlier) / 1e9 for earlier, later in pairwise(stamps)]
    return Sizing(
        prefill_tokens_per_s=tokens / max(seconds, 1e-6),
        decode_step_s=max(statistics.median(gaps), 1e-4) if gaps else 1e-4,
        context_tokens=context_tokens,
        slo_pause_s=slo_pause_s,
    )


def _ask(target: Target, book: PromptBook, prompt_tokens: int, max_tokens: int) -> ChatStream:
    request = ScheduledRequest(
        id="size", at_s=0.0, prompt_tokens=prompt_tokens, max_tokens=max_tokens, prompt_seed=prompt_tokens
    )
    prompt = book.prompt(request, secrets.token_hex(4))
    body = bodies([request], {request.id: prompt}, target, str(model_card(target)["id"]))[request.id]
    stream = ChatStream(target.url, target.request_headers(), json.dumps(body).encode())
    stream.connect()
    stream.run()
    if stream.outcome is not Outcome.COMPLETED or not stream.events:
        said = stream.fault or "an answer without content"
        raise TargetError(f"{target.url} does not answer a prompt of {prompt_tokens} tokens: {said}")
    return stream


def _first_token_s(stream: ChatStream) -> float:
    assert stream.sent_at_ns is not None
    return (stream.events[0][0] - stream.sent_at_ns) / 1e9
