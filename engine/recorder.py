"""Recording to disk without ever holding up a step: the traffic (`--record`) and the steps (`--steps`).

The event loop puts a value into a queue and goes on; a thread hashes, formats and writes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import queue
import secrets
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.core.errors import EvenflowError
from engine.core.events import StepRecord
from engine.core.request import Request
from engine.core.step_json import step_to_mapping
from engine.core.trace import TraceHeader, TraceOriginal, TraceRow, format_header, format_row
from engine.server.service import Caller
from engine.server.stats import EndedRequest

_log = logging.getLogger(__name__)

# Small enough to tell short shared prefixes apart, large enough that a long prompt's row stays under 2 kB.
PREFIX_BLOCK_TOKENS = 64
_FLUSH_S = 1.0
_MAX_QUEUED = 65536


class RecordError(EvenflowError):
    """A recording cannot be opened."""


class LineWriter:
    """Appends lines to a new file from a thread of its own; on disk a second later at most.

    A file that is there already is kept under a numbered name. When the disk is slower than the
    traffic, lines are dropped, counted and reported; when it fails, recording ends with one message.

    Args:
        format_line: makes a line, without its break; called on the writer's thread.

    Raises:
        RecordError: the file cannot be made.
    """

    def __init__(self, path: Path, format_line: Callable[[Any], str], max_queued: int = _MAX_QUEUED) -> None:
        self.num_dropped = 0
        self._path = path
        self._format = format_line
        self._queue: queue.Queue[Any] = queue.Queue(max_queued)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _set_aside(path)
            self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115  closed by the thread
        except OSError as error:
            raise RecordError(f"cannot record to {path}: {error.strerror or error}") from None
        self._thread = threading.Thread(target=self._run, name=f"write {path.name}", daemon=True)
        self._thread.start()

    def put(self, value: Any) -> None:
        """Queues a value; never blocks."""
        try:
            self._queue.put_nowait(value)
        except queue.Full:
            self.num_dropped += 1
            if self.num_dropped == 1:
                _log.warning("%s: the disk is too slow; lines are being dropped", self._path)

    def close(self) -> None:
        """Writes what is queued and closes the file."""
        self._queue.put(_END)
        self._thread.join()
        if self.num_dropped:
            _log.warning("%s: %d lines were dropped", self._path, self.num_dropped)

    def _run(self) -> None:
        try:
            with self._file:
                self._write_until_end()
        except OSError as error:
            _log.error("%s: %s; nothing more is recorded", self._path, error)
            self._discard_until_end()

    def _write_until_end(self) -> None:
        flushed_at_s = time.monotonic()
        while True:
            try:
                value = self._queue.get(timeout=_FLUSH_S)
            except queue.Empty:
                self._file.flush()
                continue
            if value is _END:
                return
            self._file.write(self._format(value) + "\n")
            if self._queue.empty() or time.monotonic() - flushed_at_s >= _FLUSH_S:
                self._file.flush()
                flushed_at_s = time.monotonic()

    def _discard_until_end(self) -> None:
        while self._queue.get() is not _END:
            pass


_END = object()


def _set_aside(path: Path) -> None:
    if not path.exists() or path.stat().st_size == 0 or not path.is_file():
        return
    number = 1
    while (other := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    os.replace(path, other)


class StepRecorder:
    """Writes every step as one line, as `/admin/steps` gives it."""

    def __init__(self, path: Path) -> None:
        self._writer = LineWriter(path, lambda entry: json.dumps(step_to_mapping(*entry)))

    def on_step(self, record: StepRecord, seq: int) -> None:
        self._writer.put((record, seq))

    def on_end(self, request: Request, caller: Caller, ended: EndedRequest) -> None: ...

    def on_refused(self, request: Request, caller: Caller, status: int) -> None: ...

    def close(self) -> None:
        self._writer.close()


@dataclass(frozen=True, slots=True)
class _Seen:
    request: Request
    caller: Caller
    ended: EndedRequest | None
    status: int


class TraceRecorder:
    """Writes every request as a trace row: lengths and salted hashes, never text.

    Requests that were turned away are rows too (without output): what was offered is part of the
    traffic. Rows come in the order of their ends.

    Args:
        clock: the engine's; `t` counts from the recorder's making.
        salt: of the hashes; a fresh one makes them useless to anybody who does not have the file's
            prompts and this process's memory.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: Callable[[], str] = lambda: "",
        clock: Callable[[], float] = time.perf_counter,
        salt: bytes | None = None,
    ) -> None:
        self._t0 = datetime.now(UTC)
        self._t0_s = clock()
        self._salt = salt or secrets.token_bytes(16)
        self._tokenizer = tokenizer
        self._sessions: dict[str, tuple[str, int, float]] = {}
        self._has_header = False
        self._writer = LineWriter(path, self._line)

    def on_step(self, record: StepRecord, seq: int) -> None: ...

    def on_end(self, request: Request, caller: Caller, ended: EndedRequest) -> None:
        self._writer.put(_Seen(request, caller, ended, 200))

    def on_refused(self, request: Request, caller: Caller, status: int) -> None:
        if status == 429:
            self._writer.put(_Seen(request, caller, None, status))

    def close(self) -> None:
        self._writer.close()

    # -- on the writer's thread ----------------------------------------------------------------------

    def _line(self, seen: _Seen) -> str:
        row = format_row(self._row(seen))
        if self._has_header:
            return row
        self._has_header = True
        return format_header(self._header()) + "\n" + row

    def _header(self) -> TraceHeader:
        return TraceHeader(
            t0=self._t0.isoformat(timespec="milliseconds"),
            tokenizer=self._tokenizer(),
            block=PREFIX_BLOCK_TOKENS,
            salt_id=hashlib.blake2b(self._salt, digest_size=4).hexdigest(),
            source="evenflow",
        )

    def _row(self, seen: _Seen) -> TraceRow:
        request, ended = seen.request, seen.ended
        timeline = ended.timeline if ended else None
        session = self._pseudonym(seen.caller.session)
        return TraceRow(
            id=request.id,
            t=round(max(0.0, request.arrived_at_s - self._t0_s), 6),
            prompt_tokens=request.num_prompt_tokens,
            output_tokens=timeline.num_output_tokens if timeline else 0,
            user=self._pseudonym(seen.caller.user),
            session=session,
            cached=timeline.cached_tokens or None if timeline else None,
            max_tokens=request.max_tokens,
            prefix=prefix_hashes(request.prompt, self._salt),
            stream=seen.caller.streams,
            priority=request.priority or None,
            cancel_s=_seconds(request, ended) if ended and ended.outcome == "aborted" else None,
            orig=_original(seen),
            **self._turn(session, request, ended),
        )

    def _turn(self, session: str | None, request: Request, ended: EndedRequest | None) -> dict[str, Any]:
        """Which turn of its session this is, and how long after the one before."""
        if session is None or ended is None:
            return {}
        after, turn, ended_at_s = self._sessions.get(session, ("", 0, 0.0))
        self._sessions[session] = (request.id, turn + 1, ended.ended_at_s)
        think_s = request.arrived_at_s - ended_at_s
        if not turn or think_s < 0:  # turns that overlap do not follow one another
            return {"turn": turn + 1}
        return {"turn": turn + 1, "after": after, "think_s": round(think_s, 6)}

    def _pseudonym(self, name: str | None) -> str | None:
        if not name:
            return None
        return hashlib.blake2b(name.encode(), key=self._salt, digest_size=6).hexdigest()


def prefix_hashes(
    prompt: Sequence[int], salt: bytes, block_tokens: int = PREFIX_BLOCK_TOKENS
) -> tuple[str, ...]:
    """One hash a block, each of the whole prompt up to the block's end; equal prefixes hash equal."""
    running = hashlib.blake2b(key=salt, digest_size=6)
    return tuple(_blocks(running, array("q", prompt), block_tokens))


def _blocks(running: Any, tokens: array[int], block_tokens: int) -> Iterable[str]:
    for start in range(0, len(tokens), block_tokens):
        running.update(tokens[start : start + block_tokens].tobytes())
        yield running.copy().hexdigest()


def _seconds(request: Request, ended: EndedRequest) -> float:
    return round(max(0.0, ended.ended_at_s - request.arrived_at_s), 6)


def _original(seen: _Seen) -> TraceOriginal:
    if seen.ended is None:
        return TraceOriginal(status=seen.status)
    timeline = seen.ended.timeline
    return TraceOriginal(
        status=seen.ended.outcome,
        queue_s=timeline.queue_s,
        ttft_s=timeline.ttft_s,
        worst_pause_s=timeline.worst_pause_s,
        e2e_s=_seconds(seen.request, seen.ended),
        config=timeline.generation,
    )
