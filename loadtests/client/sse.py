"""Server-sent events of a chat stream: from bytes to what they carried. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.core.json_text import parse_json
from engine.core.trace import MAX_TOKENS

_CONTENT_FIELDS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls")


class SseParser:
    """Cuts a byte stream into the data of its events, however the packets fell."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """The data of every event that `data` completes; comments and other fields carry none."""
        self._pending = (self._pending + data).replace(b"\r\n", b"\n")
        *blocks, self._pending = self._pending.split(b"\n\n")
        for block in blocks:
            lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
            if lines:
                yield b"\n".join(lines).decode("utf-8", errors="replace")


@dataclass(slots=True)
class StreamState:
    """What a stream has said so far; `take` reads one event.

    Attributes:
        output_tokens: the server's own count when it gives one, else content events counted.
        error: the message of an error event.
    """

    prompt_tokens: int | None = None
    cached_tokens: int = 0
    finish_reason: str | None = None
    done: bool = False
    error: str | None = None
    timings: Mapping[str, Any] | None = None
    usage_tokens: int | None = None
    counted_tokens: int = 0

    @property
    def output_tokens(self) -> int:
        return self.counted_tokens if self.usage_tokens is None else self.usage_tokens

    def take(self, data: str) -> tuple[int | None, int | None]:
        """Reads one event's data.

        Returns:
            Output tokens it carried (None: not a content event) and the engine's emit stamp in ns.
        """
        if data.strip() == "[DONE]":
            self.done = True
            return None, None
        try:
            event = parse_json(data)
        except ValueError:
            self.error = f"an event is not JSON: {data[:80]!r}"
            return None, None
        try:
            return self._take_event(event)
        except (AttributeError, TypeError):
            self.error = f"an event is not a chat chunk: {data[:80]!r}"
            return None, None

    def _take_event(self, event: dict[str, Any]) -> tuple[int | None, int | None]:
        if event.get("error"):
            self.error = error_message(event)
            return None, None
        choices = event.get("choices") or []
        was_running = self.usage_tokens is not None
        carried = self._take_choices(choices)
        self._take_usage(event.get("usage") or {})
        self._take_timings(event.get("timings") or {})
        told = _tokens(event.get("num_tokens"))
        num_tokens = self._count(carried, bool(choices) and was_running, told)
        emitted = event.get("emit_ns")
        return num_tokens, emitted if isinstance(emitted, int) else None

    def _take_choices(self, choices: list[Any]) -> bool:
        carried = False
        for choice in choices:
            reason = choice.get("finish_reason")
            self.finish_reason = str(reason) if reason else self.finish_reason
            delta = choice.get("delta") or {}
            carried = carried or bool(choice.get("text") or any(delta.get(name) for name in _CONTENT_FIELDS))
        return carried

    def _take_usage(self, usage: Mapping[str, Any]) -> None:
        prompt, output = _tokens(usage.get("prompt_tokens")), _tokens(usage.get("completion_tokens"))
        self.prompt_tokens = self.prompt_tokens if prompt is None else prompt
        self.usage_tokens = self.usage_tokens if output is None else output
        details = usage.get("prompt_tokens_details") or {}
        self.cached_tokens = _tokens(details.get("cached_tokens")) or self.cached_tokens

    def _take_timings(self, timings: Mapping[str, Any]) -> None:
        self.cached_tokens = _tokens(timings.get("cached_tokens")) or self.cached_tokens
        self.timings = timings or self.timings

    def _count(self, carried: bool, running: bool, told: int | None) -> int | None:
        """Tokens of one event: as told in it, or by how much the server's running count passed ours, else
        one per event with content. An event without content counts only by a running count, so that the
        total which ends a stream is not taken for output.
        """
        grown = (self.usage_tokens or 0) - self.counted_tokens
        num_tokens = max(1 if carried else 0, grown if carried or running else 0) if told is None else told
        self.counted_tokens += num_tokens
        return num_tokens if carried or num_tokens > 0 else None


def _tokens(said: Any) -> int | None:
    """What a server says is a number of tokens. Raises: TypeError: it is none."""
    if said is not None and (type(said) is not int or not 0 <= said <= MAX_TOKENS):
        raise TypeError(f"{said!r} is no number of tokens")
    return said


def error_message(body: Mapping[str, Any]) -> str:
    """The message of an OpenAI-shaped error object."""
    error = body.get("error")
    return str(error.get("message", error)) if isinstance(error, dict) else str(error or body)
