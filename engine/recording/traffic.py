"""The traffic to disk (`--record`): every request as a trace row, never holding up a step."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from engine.core.events import StepRecord
from engine.core.redaction import BLOCK_TOKENS, Redactor
from engine.core.request import Request
from engine.core.slo import micros
from engine.core.trace import TraceHeader, TraceOriginal, TraceRow, format_header, format_row
from engine.core.trace_parts import Parts
from engine.core.turns import Span, Stem, Turn, Turns
from engine.recording.lines import LineWriter
from engine.server.service import Caller
from engine.server.stats import EndedRequest

T = TypeVar("T")

_MAX_QUEUED = 1024  # each holds its prompt
# A chat template ends a prompt with a cue to answer, a few tokens that later turns need not have there.
_MAX_CUE_TOKENS = 32
_SLICE_S = 50e-6
_REST_S = 200e-6


@dataclass(frozen=True, slots=True)
class _Seen:
    """A request that is over: `ended` when it was let in, `status` and `generation` when it was not."""

    request: Request
    caller: Caller
    ended: EndedRequest | None
    status: int = 200
    generation: int = 0


class TrafficRecorder:
    """Writes every request as a trace row: lengths and salted hashes, never text.

    Requests that were turned away are rows too (without output): what was offered is part of the
    traffic. Rows come in the order of their ends; a request that has not ended has no row yet.

    Args:
        tokenizer: asked for its fingerprint when the first request has ended.
        clock: the engine's; `t` counts from the recorder's making.
        salt: of the hashes; a fresh one makes them useless to anybody who does not have the file's
            prompts and this process's memory.
        max_bytes: of a file; the recording goes on in a numbered one. 0 is no limit.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.perf_counter,
        salt: bytes | None = None,
        max_bytes: int = 0,
    ) -> None:
        self._t0 = datetime.now(UTC)
        self._t0_s = clock()
        self._tokenizer = tokenizer
        self._redactor = Redactor(salt or secrets.token_bytes(16))
        self._turns = Turns(BLOCK_TOKENS)
        parts = Parts(lambda: format_header(self._header()), max_bytes)
        self._writer = LineWriter(path, lambda seen: format_row(self._row(seen)), _MAX_QUEUED, parts.place)

    def on_step(self, record: StepRecord, seq: int) -> None: ...

    def on_end(self, request: Request, caller: Caller, ended: EndedRequest) -> None:
        self._writer.put(_Seen(request, caller, ended))

    def on_refused(self, request: Request, caller: Caller, status: int, generation: int) -> None:
        if status == 429:  # of the others none could be served at another time either, or nobody serves
            self._writer.put(_Seen(request, caller, None, status, generation))

    def close(self) -> None:
        self._writer.close()

    # -- on the writer's thread ----------------------------------------------------------------------

    def _header(self) -> TraceHeader:
        return TraceHeader(
            t0=self._t0.isoformat(timespec="milliseconds"),
            tokenizer=self._tokenizer(),
            block=BLOCK_TOKENS,
            salt_id=self._redactor.salt_id,
            source="evenflow",
        )

    def _row(self, seen: _Seen) -> TraceRow:
        request, ended = seen.request, seen.ended
        timeline = ended.timeline if ended else None
        hashes = gently(self._redactor.hashes(request.prompt))
        turn = self._turn(seen, hashes)
        return TraceRow(
            id=request.id,
            t=round(max(0.0, request.arrived_at_s - self._t0_s), 6),
            prompt_tokens=request.num_prompt_tokens,
            output_tokens=timeline.num_output_tokens if timeline else 0,
            user=self._pseudonym(seen.caller.user),
            session=turn.session if turn else self._session(seen.caller),
            turn=turn.number if turn else None,
            after=turn.after if turn else None,
            think_s=micros(turn.think_s) if turn else None,
            cached=timeline.cached_tokens or None if timeline else None,
            max_tokens=request.max_tokens,
            prefix=tuple(hashes),
            stream=seen.caller.streams,
            priority=request.priority or None,
            cancel_s=_seconds(request, ended) if ended and ended.outcome == "aborted" else None,
            orig=_original(seen),
        )

    def _turn(self, seen: _Seen, hashes: list[str]) -> Turn | None:
        """Where a request stands in its session; None for one that was turned away: nobody follows it."""
        if seen.ended is None:
            return None
        request = seen.request
        span = Span(request.id, request.arrived_at_s, seen.ended.ended_at_s)
        if session := self._session(seen.caller):
            return self._turns.of_session(session, span)
        stem = Stem(request.prompt, _stem_tokens(request), hashes)
        return self._turns.of_stem(seen.caller.user, stem, span)

    def _session(self, caller: Caller) -> str | None:
        """Of two users' sessions of one name each is its own."""
        return self._redactor.pseudonym(caller.user or "", caller.session) if caller.session else None

    def _pseudonym(self, name: str | None) -> str | None:
        return self._redactor.pseudonym(name) if name else None


def gently(items: Iterable[T]) -> list[T]:
    """All the items, with a rest after every twentieth of a millisecond of work and at the end.

    A thread that computes keeps the interpreter until another one has waited for it for a whole switch
    interval, and that would be the engine's, with a step to plan. One that sleeps has let go of it.
    """
    taken: list[T] = []
    rest_at_s = time.perf_counter() + _SLICE_S
    for item in items:
        taken.append(item)
        if time.perf_counter() >= rest_at_s:
            time.sleep(_REST_S)
            rest_at_s = time.perf_counter() + _SLICE_S
    time.sleep(_REST_S)
    return taken


def _stem_tokens(request: Request) -> int:
    """Where the prompt's last message ends. Of a prompt without messages all of it counts, unless it is so
    short that others begin like it by chance.
    """
    length = request.num_prompt_tokens
    last = request.boundaries[-1] if request.boundaries else length
    if last < length:
        return last if length - last <= _MAX_CUE_TOKENS else length
    return length if length >= BLOCK_TOKENS else 0


def _seconds(request: Request, ended: EndedRequest) -> float:
    return round(max(0.0, ended.ended_at_s - request.arrived_at_s), 6)


def _original(seen: _Seen) -> TraceOriginal:
    if seen.ended is None:
        return TraceOriginal(status=seen.status, config=seen.generation)
    timeline = seen.ended.timeline
    return TraceOriginal(
        status=seen.ended.outcome,
        queue_s=micros(timeline.queue_s),
        ttft_s=micros(timeline.ttft_s),
        worst_pause_s=micros(timeline.worst_pause_s),
        e2e_s=_seconds(seen.request, seen.ended),
        config=timeline.generation,
    )
