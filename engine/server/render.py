"""OpenAI's shapes of an answer: whole, and in pieces."""

from __future__ import annotations

import json
import time
from typing import Any

from engine.core.request import Request
from engine.server.errors import sse_error
from engine.server.sse import DONE
from engine.server.stats import timings
from engine.server.stream import Delta, End
from engine.server.wire import StreamOptions


def usage(prompt_tokens: int, output_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


class Shape:
    """How one of the two APIs names and writes things."""

    whole = "text_completion"
    piece = "text_completion"
    id_prefix = "cmpl"
    prompt_field = "prompt"

    def choice(self, text: str, reason: str) -> dict[str, Any]:
        return {"index": 0, "text": text, "finish_reason": reason, "logprobs": None}

    def first(self, text: str) -> str:
        return self.next(text)

    def next(self, text: str) -> str:
        return f'{{"index": 0, "text": {json.dumps(text)}, "finish_reason": null, "logprobs": null}}'

    def last(self, reason: str) -> str:
        return f'{{"index": 0, "text": "", "finish_reason": "{reason}", "logprobs": null}}'


class ChatShape(Shape):
    whole = "chat.completion"
    piece = "chat.completion.chunk"
    id_prefix = "chatcmpl"
    prompt_field = "messages"

    def choice(self, text: str, reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text}
        return {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}

    def first(self, text: str) -> str:
        """The role goes with the first text: on its own it would look like a first token."""
        delta = f'{{"role": "assistant", "content": {json.dumps(text)}}}'
        return f'{{"index": 0, "delta": {delta}, "finish_reason": null}}'

    def next(self, text: str) -> str:
        return f'{{"index": 0, "delta": {{"content": {json.dumps(text)}}}, "finish_reason": null}}'

    def last(self, reason: str) -> str:
        return f'{{"index": 0, "delta": {{}}, "finish_reason": "{reason}"}}'


def whole_answer(shape: Shape, request: Request, model: str, text: str, end: End) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    timeline = end.timeline
    return {
        "id": request.id,
        "object": shape.whole,
        "created": int(time.time()),
        "model": model,
        "choices": [shape.choice(text, end.reason.value)],
        "usage": usage(request.num_prompt_tokens, timeline.num_output_tokens, timeline.cached_tokens),
    }


class EventRenderer:
    """One answer as events. With `include_timings` each says how many tokens it stands for, which step
    wrote the last of them and when that left the device; the last event carries the timings.
    """

    def __init__(
        self, shape: Shape, request_id: str, model: str, prompt_tokens: int, options: StreamOptions
    ) -> None:
        head = {"id": request_id, "object": shape.piece, "created": int(time.time()), "model": model}
        # An event costs one dump of its text; the rest is made once.
        self._id = request_id
        self._prefix = "data: " + json.dumps(head)[:-1] + ', "choices": ['
        self._shape = shape
        self._options = options
        self._prompt_tokens = prompt_tokens
        self._num_tokens = 0
        self._cached_tokens = 0
        self._choice = shape.first

    def delta(self, delta: Delta) -> bytes:
        choice, self._choice = self._choice(delta.text), self._shape.next
        return self._event(choice, self._extras(delta.num_tokens, delta.step, delta.emitted_at_s))

    def end(self, end: End) -> bytes:
        if end.error:
            return sse_error(end.error) + DONE
        self._cached_tokens = end.timeline.cached_tokens
        ended_at_s = end.timeline.ended_at_s or 0.0
        events = [(self._shape.last(end.reason.value), self._extras(end.num_tokens, end.step, ended_at_s))]
        if self._options.include_usage:
            events.append(("", self._extras(0, end.step, ended_at_s) | {"usage": self._usage()}))
        if self._options.include_timings:
            # By this id its chunks are found in the step records, whatever the client calls the request.
            events[-1][1]["timings"] = {"id": self._id} | timings(end.timeline)
        return b"".join(self._event(*event) for event in events) + DONE

    def _extras(self, num_tokens: int, step: int, emitted_at_s: float) -> dict[str, Any]:
        self._num_tokens += num_tokens
        extras: dict[str, Any] = {}
        if self._options.include_timings:
            extras = {"emit_ns": round(emitted_at_s * 1e9), "step": step, "num_tokens": num_tokens}
        if self._options.continuous_usage_stats:
            extras["usage"] = self._usage()
        elif self._options.include_usage:
            extras["usage"] = None
        return extras

    def _usage(self) -> dict[str, Any]:
        return usage(self._prompt_tokens, self._num_tokens, self._cached_tokens)

    def _event(self, choice: str, extras: dict[str, Any]) -> bytes:
        tail = ", " + json.dumps(extras)[1:] if extras else "}"
        return f"{self._prefix}{choice}]{tail}\n\n".encode()
