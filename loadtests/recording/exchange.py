"""One request and its answer, as their bytes pass by. No I/O and no clock."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engine.core.json_text import parse_json
from engine.core.slo import micros
from engine.core.trace import TraceOriginal
from loadtests.client.sse import SseParser, StreamState

_MAX_WHOLE_BYTES = 16 << 20
_BAD_FINISHES = ("error", "failed", "aborted", "abort")
# Random enough that no two requests share it.
_UNIQUE_ID = re.compile(r"[A-Za-z_]*-?[0-9A-Za-z-]{20,64}")


class Outcome(StrEnum):
    """How an answer that had begun ended; the same words as the engine's own."""

    COMPLETED = "completed"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass(slots=True)
class Exchange:
    """Fed by the proxy; seconds on its clock.

    Attributes:
        headers: of the request, by lower-case name.
        status: of the answer; None until its head has come.
        left_s: when the client had gone, if it went first.
        state: what the answer has said; of one that comes whole once it has ended.
        num_chars: text of an answer that came whole.
    """

    body: bytes
    headers: Mapping[str, str]
    arrived_s: float
    status: int | None = None
    generation: int | None = None
    left_s: float | None = None
    ended_s: float | None = None
    state: StreamState = field(default_factory=StreamState)
    answer_id: str | None = None
    streams: bool = False
    first_content_s: float | None = None
    last_content_s: float | None = None
    worst_pause_s: float | None = None
    num_chars: int = 0
    _parser: SseParser = field(init=False, default_factory=SseParser)
    _whole: bytearray = field(init=False, default_factory=bytearray)

    def on_head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status
        self.streams = "event-stream" in headers.get("content-type", "")
        generation = headers.get("x-config-generation", "")
        self.generation = int(generation) if generation.isdecimal() else None

    def on_bytes(self, data: bytes, at_s: float) -> None:
        """Takes bytes of the answer's body, which came at `at_s`."""
        if self.status != 200:
            return
        if not self.streams:
            if len(self._whole) <= _MAX_WHOLE_BYTES:
                self._whole += data
            return
        for event in self._parser.feed(data):
            self._note_id(event)
            num_tokens, _ = self.state.take(event)
            if num_tokens is not None:
                self._on_content(at_s)

    def on_left(self, at_s: float) -> None:
        """The client has gone before the answer was whole."""
        self.left_s = at_s
        self.on_end(at_s)

    def on_end(self, at_s: float) -> None:
        """Nothing more comes, whether or not the answer is whole. Only the first end counts."""
        if self.ended_s is not None:
            return
        self.ended_s = at_s
        if self._whole:
            self._take_whole(self._whole.decode(errors="replace"))
            self._whole.clear()
        elif self.streams and self.last_content_s is not None and not self.state.finish_reason:
            self._note_pause(at_s - self.last_content_s)  # of a stream that was cut: it had lasted that long

    @property
    def is_offered_traffic(self) -> bool:
        """Whether it was served, refused or failed, and not a request that no server could answer."""
        if self.status is None:
            return self.left_s is not None
        return self.status in (200, 429) or self.status >= 500

    @property
    def outcome(self) -> Outcome:
        """Of a request that was let in."""
        reason = self.state.finish_reason
        if reason and not self.state.error:
            return Outcome.FAILED if reason in _BAD_FINISHES else Outcome.COMPLETED
        return Outcome.ABORTED if self.left_s is not None else Outcome.FAILED

    @property
    def is_refused(self) -> bool:
        return self.status is not None and self.status != 200

    @property
    def cancel_s(self) -> float | None:
        """How long after its arrival the client left, if it left before the end."""
        if self.left_s is None or self.is_refused or self.outcome is not Outcome.ABORTED:
            return None
        return self.left_s - self.arrived_s

    @property
    def unique_id(self) -> str | None:
        """The answer's own id, unless the client had a say in it or others may have the same."""
        if self.answer_id is None or "x-request-id" in self.headers:
            return None
        return self.answer_id if _UNIQUE_ID.fullmatch(self.answer_id) else None

    @property
    def prompt_tokens(self) -> int | None:
        """As the answer's `usage` says."""
        return self.state.prompt_tokens

    @property
    def output_tokens(self) -> int | None:
        """As the answer's `usage` says."""
        return self.state.usage_tokens

    @property
    def num_events(self) -> int:
        """Of those with content."""
        return self.state.counted_tokens

    @property
    def cached_tokens(self) -> int | None:
        return self.state.cached_tokens or None

    @property
    def _queue_s(self) -> float | None:
        said = self.state.timings.get("queue_s") if self.state.timings else None
        is_time = isinstance(said, int | float) and math.isfinite(said)
        return micros(said) if is_time else None

    def original(self) -> TraceOriginal:
        """What the server did, for a trace's row."""
        if self.is_refused:
            return TraceOriginal(status=self.status, config=self.generation)
        ended_s = self.arrived_s if self.ended_s is None else self.ended_s
        return TraceOriginal(
            status=self.outcome.value,
            queue_s=self._queue_s,
            ttft_s=micros(None if self.first_content_s is None else self.first_content_s - self.arrived_s),
            worst_pause_s=micros(self.worst_pause_s),
            e2e_s=micros(ended_s - self.arrived_s),
            config=self.generation,
        )

    def _on_content(self, at_s: float) -> None:
        if self.last_content_s is None:
            self.first_content_s = at_s
        else:
            self._note_pause(at_s - self.last_content_s)
        self.last_content_s = at_s

    def _note_pause(self, seconds: float) -> None:
        self.worst_pause_s = max(self.worst_pause_s or 0.0, seconds)

    def _take_whole(self, text: str) -> None:
        self._note_id(text)
        self.state.take(text)
        try:
            choices = parse_json(text)["choices"]
            texts = (choice.get("text") or choice["message"].get("content") or "" for choice in choices)
            self.num_chars = sum(map(len, texts))
        except (ValueError, LookupError, TypeError, AttributeError):
            pass  # what is wrong with it is in `state`

    def _note_id(self, text: str) -> None:
        if self.answer_id is not None:
            return
        try:
            value = parse_json(text)
        except ValueError:
            return
        answer_id = value.get("id") if isinstance(value, dict) else None
        self.answer_id = answer_id if isinstance(answer_id, str) else None
