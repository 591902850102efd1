"""One admitted request as its handler sees it: text coming in, and exactly one end."""

from __future__ import annotations

import asyncio
import dataclasses
from dataclasses import dataclass

from engine.core.events import FinishedEvent, TokenEvent
from engine.core.request import FinishReason, Request
from engine.core.timeline import Timeline
from engine.server.errors import ApiError
from engine.server.text import Detokenizer, StopStrings


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that became certain with a token; `num_tokens` counts those since the delta before.

    Attributes:
        emitted_at_s: when the last of its tokens left the device, on the engine's clock.
    """

    text: str
    num_tokens: int
    step: int
    emitted_at_s: float


@dataclass(frozen=True, slots=True)
class End:
    """How it ended.

    Attributes:
        num_tokens: written after the last delta, without text.
        step: that wrote the last token; 0 when there was none.
        error: what is answered instead, when the reason is `FAILED`.
    """

    reason: FinishReason
    timeline: Timeline
    num_tokens: int
    step: int
    error: ApiError | None = None


class Stream:
    """Text of one answer. Fed and read on the event loop; one reader.

    Detokenising happens here and not on the engine thread, which waits for nothing but the device:
    while it waits, this runs.

    Attributes:
        num_tokens: taken in so far.
        shows_every_token: a token whose text is held back (half a character, a stop string's beginning)
            still makes a delta, with no text: a pause of the text alone is no pause of the server.
    """

    def __init__(self, request: Request, detokenizer: Detokenizer, stops: StopStrings) -> None:
        self.request = request
        self.end: End | None = None
        self.num_tokens = 0
        self.last_token_at_s: float | None = None
        self.worst_pause_s = 0.0
        self.shows_every_token = False
        self._detokenizer = detokenizer
        self._stops = stops
        self._unread: list[Delta] = []
        self._unsent_tokens = 0
        self._last: TokenEvent | None = None
        self._waiter: asyncio.Future[None] | None = None

    # -- the feeding side ----------------------------------------------------------------------------

    def on_token(self, event: TokenEvent) -> float | None:
        """Takes in a token; the gap since the one before. `stop_matched` may be true afterwards."""
        gap_s = None if self.last_token_at_s is None else event.at_s - self.last_token_at_s
        self.last_token_at_s = event.at_s
        if gap_s is not None and gap_s > self.worst_pause_s:
            self.worst_pause_s = gap_s
        self.num_tokens += 1
        self._unsent_tokens += 1
        self._last = event
        self._show(self._stops.push(self._detokenizer.push(event.token)))
        return gap_s

    @property
    def stop_matched(self) -> bool:
        return self._stops.stopped

    def on_finished(self, event: FinishedEvent, error: ApiError | None = None) -> End:
        """Takes in the end; the only call of its kind. Tokens that the engine had written before it heard of
        a stop string, or of the client's leaving, are no part of the answer.
        """
        assert self.end is None
        reason = event.reason
        if self.stop_matched and reason is FinishReason.LENGTH:
            reason = FinishReason.STOP  # the limit was reached by the very token that completed the string
        if not self.stop_matched:
            self._show(self._stops.push(self._detokenizer.finish()))
            self._show(self._stops.finish())
        step = self._last.step if self._last else 0
        timeline = dataclasses.replace(event.timeline, num_output_tokens=self.num_tokens)
        self.end = End(reason, timeline, self._unsent_tokens, step, error)
        self.wake()
        return self.end

    def wake(self) -> None:
        """Makes a waiting `take` return, with nothing if there is nothing."""
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def _show(self, text: str) -> None:
        if not text and not (self.shows_every_token and self._unsent_tokens):
            return
        last = self._last
        step, at_s = (last.step, last.at_s) if last else (0, self.request.arrived_at_s)
        self._unread.append(Delta(text, self._unsent_tokens, step, at_s))
        self._unsent_tokens = 0
        self.wake()

    # -- the reading side ----------------------------------------------------------------------------

    async def take(self) -> list[Delta]:
        """Deltas that came since the last call, waiting for one; nothing when woken or ended."""
        if not self._unread and self.end is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        deltas, self._unread = self._unread, []
        return deltas

    async def read_all(self) -> tuple[str, End]:
        """The whole text, once the answer has ended."""
        texts: list[str] = []
        while self.end is None or self._unread:
            texts += (delta.text for delta in await self.take())
        return "".join(texts), self.end
