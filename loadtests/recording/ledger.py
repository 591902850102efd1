"""Makes trace rows of exchanges and writes them, one after the other, while the traffic goes on."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.core.redaction import BLOCK_CHARS, BLOCK_TOKENS, Redactor
from engine.core.slo import micros
from engine.core.trace import TraceRow, format_row
from engine.core.turns import Span, Stem, Turn, Turns
from loadtests.errors import RecordingError
from loadtests.recording.asked import Asked, read_request
from loadtests.recording.counting import TokenCounter
from loadtests.recording.estimate import TokenEstimate
from loadtests.recording.exchange import Exchange

_MAX_QUEUED = 1024  # each holds its prompt
_BLOCKS_PER_SLICE = 16  # hashed before streams get their turn: a thirtieth of a millisecond


class Writes(Protocol):
    """Where rows go."""

    def append(self, line: str) -> None:
        """Raises: RecordingError."""


@dataclass(slots=True)
class Tally:
    """What became of the exchanges; `fault` is why nothing more is written."""

    num_rows: int = 0
    num_estimated: int = 0
    num_unreadable: int = 0
    num_dropped: int = 0
    fault: str | None = None


class Ledger:
    """Used on one event loop.

    Args:
        counter: gives token ids; None when the server counts no prompts. Then prefixes are told in blocks of
            text, and prompts whose length the answer does not tell are estimated and marked so.
        started_s: the clock's `t` = 0.
    """

    def __init__(
        self, file: Writes, redactor: Redactor, counter: TokenCounter | None, started_s: float
    ) -> None:
        self.tally = Tally()
        self._file = file
        self._redactor = redactor
        self._counter = counter
        self._started_s = started_s
        self._sessions = self._text_turns = Turns(BLOCK_CHARS)
        self._token_turns = Turns(BLOCK_TOKENS)
        self._queue: asyncio.Queue[Exchange | None] = asyncio.Queue(_MAX_QUEUED)
        self._estimate = TokenEstimate()

    def put(self, exchange: Exchange) -> None:
        """Takes an exchange that is over; never waits."""
        try:
            self._queue.put_nowait(exchange)
        except asyncio.QueueFull:
            self.tally.num_dropped += 1

    async def close(self) -> None:
        """`run` ends once all that was put is written."""
        await self._queue.put(None)

    async def run(self) -> None:
        """Writes until `close`. When the disk fails, the traffic still goes on."""
        while exchange := await self._queue.get():
            if self.tally.fault is None:
                await self._record(exchange)

    async def _record(self, exchange: Exchange) -> None:
        asked = read_request(exchange.body)
        if asked is None:
            self.tally.num_unreadable += 1
            return
        row = await self._row(exchange, asked)
        self.tally.num_estimated += bool(row.estimated)
        try:
            await asyncio.to_thread(self._file.append, format_row(row))
            self.tally.num_rows += 1
        except RecordingError as error:
            self.tally.fault = str(error)

    # -- rows ----------------------------------------------------------------------------------------

    async def _row(self, exchange: Exchange, asked: Asked) -> TraceRow:
        request_id = exchange.unique_id or f"req-{uuid.uuid4().hex}"
        token_ids = await self._token_ids(exchange, asked)
        hashes = await _in_turns(self._redactor.hashes(asked.prompt))
        turn = self._turn(request_id, exchange, asked, hashes)
        prompt_tokens = self._prompt_tokens(exchange, asked, token_ids)
        output_tokens = self._output_tokens(exchange)
        return TraceRow(
            id=request_id,
            t=round(max(0.0, exchange.arrived_s - self._started_s), 6),
            prompt_tokens=prompt_tokens.number,
            output_tokens=output_tokens.number,
            user=self._redactor.pseudonym(asked.user) if asked.user else None,
            session=turn.session if turn else self._session(exchange, asked),
            turn=turn.number if turn else None,
            after=turn.after if turn else None,
            think_s=micros(turn.think_s) if turn else None,
            cached=exchange.cached_tokens,
            max_tokens=asked.max_tokens,
            prefix=tuple(await self._prefix(asked, token_ids, hashes)),
            stream=asked.streams,
            priority=asked.priority or None,
            cancel_s=micros(exchange.cancel_s),
            orig=exchange.original(),
            estimated=("in",) * prompt_tokens.is_estimate + ("out",) * output_tokens.is_estimate,
        )

    async def _token_ids(self, exchange: Exchange, asked: Asked) -> Sequence[int] | None:
        if asked.token_ids is not None or self._counter is None or asked.to_count is None:
            return asked.token_ids
        return await self._counter.token_ids(asked.to_count, exchange.headers)

    async def _prefix(
        self, asked: Asked, token_ids: Sequence[int] | None, hashes: list[str]
    ) -> Sequence[str]:
        """In the header's kind of blocks, or none."""
        if self._counter is None:
            return hashes if asked.text else ()
        return await _in_turns(self._redactor.hashes(token_ids)) if token_ids else ()

    def _turn(self, request_id: str, exchange: Exchange, asked: Asked, hashes: list[str]) -> Turn | None:
        """Its place in its session; None for a request that was turned away: nobody follows it."""
        if exchange.is_refused or exchange.ended_s is None:
            return None
        span = Span(request_id, exchange.arrived_s, exchange.ended_s)
        if session := self._session(exchange, asked):
            return self._sessions.of_session(session, span)
        turns = self._token_turns if asked.token_ids else self._text_turns
        return turns.of_stem(asked.user, Stem(asked.prompt, _stem_length(asked), hashes), span)

    def _session(self, exchange: Exchange, asked: Asked) -> str | None:
        name = exchange.headers.get("x-session-id")
        return self._redactor.pseudonym(asked.user or "", name) if name else None

    def _prompt_tokens(self, exchange: Exchange, asked: Asked, token_ids: Sequence[int] | None) -> _Count:
        """As the answer says it; else as the server counts it; else by the characters."""
        number = exchange.prompt_tokens
        if number is None and token_ids is not None:
            number = len(token_ids)
        if number is None:
            return _Count(self._estimate.of_prompt(len(asked.text)), is_estimate=True)
        if asked.text:
            self._estimate.learn(len(asked.text), number)
        return _Count(number, is_estimate=False)

    def _output_tokens(self, exchange: Exchange) -> _Count:
        """As the answer says it; else its events with content, or its characters."""
        if exchange.output_tokens is not None:
            return _Count(exchange.output_tokens, is_estimate=False)
        if exchange.num_chars:
            return _Count(self._estimate.of_text(exchange.num_chars), is_estimate=True)
        return _Count(exchange.num_events, is_estimate=exchange.num_events > 0)


@dataclass(frozen=True, slots=True)
class _Count:
    number: int
    is_estimate: bool


def _stem_length(asked: Asked) -> int:
    """All of a conversation; a prompt without messages counts unless others may begin like it by chance."""
    block = BLOCK_TOKENS if asked.token_ids else BLOCK_CHARS
    return len(asked.prompt) if asked.is_conversation or len(asked.prompt) >= block else 0


async def _in_turns(hashes: Iterable[str]) -> list[str]:
    """All of them, with room for the streams' events in between."""
    taken: list[str] = []
    for value in hashes:
        taken.append(value)
        if len(taken) % _BLOCKS_PER_SLICE == 0:
            await asyncio.sleep(0)
    return taken
