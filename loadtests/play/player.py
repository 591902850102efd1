"""Plays a schedule: every request at its absolute instant, or when its user has become free, each on a
greenlet of its own.

Runs inside the load client's process, under gevent. What it saw is handed back as plain values; nothing
is computed here but the open gaps that decide an early stop.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gevent
from gevent.event import Event
from gevent.pool import Group

from engine.core.records import Outcome
from loadtests.client.sse_client import ChatStream
from loadtests.validity import PROBE_S

_AHEAD_S = 0.25  # a request's connection is made this long before it is sent
_RETRY_AFTER_S = 1.0  # of a refusal that does not say
_NS = 1e9


class Player:
    """One run of a job (as `loadtests.run` writes it).

    Attributes:
        worst_gap_s: the longest gap seen in a measured stream so far, open ones included.
        aborted_at_s: when the run stopped itself because of that gap; None when it did not.
    """

    def __init__(
        self, job: Mapping[str, Any], on_end: Callable[[Mapping[str, Any]], None] | None = None
    ) -> None:
        self._job = job
        self._on_end = on_end or (lambda record: None)
        self._requests: Sequence[Mapping[str, Any]] = job["requests"]
        self._abort_pause_s: float | None = job["abort_pause_s"]
        self._bodies = [request["body"].encode() for request in self._requests]
        self._due_s: dict[int, float] = {
            index: request["at_s"] for index, request in enumerate(self._requests) if request["after"] is None
        }
        self._next_turns: dict[str, list[int]] = {}
        for index, request in enumerate(self._requests):
            if request["after"] is not None:
                self._next_turns.setdefault(request["after"], []).append(index)
        self._running = Group()
        self._live: dict[int, ChatStream] = {}
        self._records: dict[int, dict[str, Any]] = {}
        self._loop_lags_s: list[float] = []
        self._stop = Event()
        self._t0_ns = 0
        self.num_sent = 0
        self.worst_gap_s = 0.0
        self.aborted_at_s: float | None = None

    @property
    def num_ended(self) -> int:
        return len(self._records)

    @property
    def running(self) -> dict[str, float]:
        """When each request that was sent and has not ended was sent, by id."""
        streams = [(self._requests[index]["id"], stream) for index, stream in self._live.items()]
        return {name: (s.sent_at_ns - self._t0_ns) / _NS for name, s in streams if s.sent_at_ns is not None}

    def stop(self) -> None:
        """Ends the run early: what runs is given up, what is left is not sent."""
        self._stop.set()

    def play(self) -> dict[str, Any]:
        """Runs the whole schedule and its drain.

        Returns:
            `records` (one per scheduled request), `loop_lags_s`, `cpu_share`, `aborted_at_s`, `elapsed_s`.
        """
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection pauses the client, which looks exactly like a server stall
        self._t0_ns = time.perf_counter_ns() + int(_AHEAD_S * _NS)
        cpu_s = time.process_time()
        helpers = [gevent.spawn(self._probe), gevent.spawn(self._watch)]
        try:
            self._dispatch()
        finally:
            gevent.killall(helpers)
            gc.enable()
        elapsed_s = self._now_s() + _AHEAD_S
        return {
            "records": [self._records.get(i) or self._never_sent(i) for i in range(len(self._requests))],
            "loop_lags_s": self._loop_lags_s,
            "cpu_share": (time.process_time() - cpu_s) / elapsed_s,
            "aborted_at_s": self.aborted_at_s,
            "elapsed_s": elapsed_s,
        }

    def _now_s(self) -> float:
        return (time.perf_counter_ns() - self._t0_ns) / _NS

    def _sleep_until(self, at_s: float) -> None:
        """To an absolute deadline: a late start shortens the sleep instead of moving what follows."""
        gevent.sleep(max(0.0, at_s - self._now_s()))

    def _dispatch(self) -> None:
        for index, due_s in list(self._due_s.items()):
            if self._stop.wait(timeout=max(0.0, due_s - _AHEAD_S - self._now_s())):
                break
            self._start(index)
        self._drain()

    def _start(self, index: int) -> None:
        self._running.start(gevent.Greenlet(self._send, index))

    def _drain(self) -> None:
        """Waits for what is running, and for the turns that follow it."""
        deadline_s = self._job["duration_s"] + self._job["grace_s"]
        ended = gevent.spawn(self._running.join)
        gevent.wait([ended, self._stop], timeout=max(0.0, deadline_s - self._now_s()), count=1)
        ended.kill()
        self._stop.set()
        for stream in self._live.values():
            stream.leave(Outcome.UNFINISHED)
        self._running.kill()

    def _send(self, index: int) -> None:
        request = self._requests[index]
        try:
            self._sleep_until(self._due_s[index] - _AHEAD_S)
            stream = self._attempt(index, first_sent_ns=None)
            first_sent_ns = stream.sent_at_ns
            for _ in range(request["retries"]):
                if stream.outcome is not Outcome.REFUSED:
                    break
                wait_s = stream.retry_after_s
                gevent.sleep(_RETRY_AFTER_S if wait_s is None else wait_s)
                stream = self._attempt(index, first_sent_ns)
        finally:
            last = self._live.pop(index, None)
            if last is not None and last.outcome is not Outcome.NEVER_SENT:
                self._keep(index, last)

    def _attempt(self, index: int, first_sent_ns: int | None) -> ChatStream:
        job, request = self._job, self._requests[index]
        timeout_s = job["duration_s"] + job["grace_s"] + 60.0
        stream = ChatStream(job["url"], job["headers"] | request["headers"], self._bodies[index], timeout_s)
        stream.first_sent_ns = first_sent_ns
        self._live[index] = stream
        stream.connect()
        if first_sent_ns is None:
            self._sleep_until(self._due_s[index])
            self.num_sent += 1
        with gevent.Timeout(request["cancel_s"], False):
            stream.run()
            return stream
        stream.leave(Outcome.CANCELLED)
        return stream

    def _keep(self, index: int, stream: ChatStream) -> None:
        request = self._requests[index]
        known = {"id": request["id"], "kind": request["kind"], "at_s": self._due_s[index]}
        record = stream_record(known, stream, self._t0_ns)
        self._records[index] = record
        self._on_end(record)
        self._follow(request["id"], record["ended_at_s"])

    def _follow(self, request_id: str, ended_at_s: float) -> None:
        """Whatever became of a turn, its user goes on after as much thought as was recorded."""
        for index in self._next_turns.get(request_id, ()):
            self._due_s[index] = ended_at_s + self._requests[index]["think_s"]
            if not self._stop.is_set():
                self._start(index)

    def _never_sent(self, index: int) -> dict[str, Any]:
        """A turn that was not due yet says so: that is no fault of the client's."""
        request, now_s = self._requests[index], self._now_s()
        due_s = self._due_s.get(index)
        was_due = due_s is not None and (request["after"] is None or due_s <= now_s)
        at_s = request["at_s"] if due_s is None else due_s
        return {
            "id": request["id"],
            "scheduled_at_s": at_s,
            "outcome": Outcome.NEVER_SENT.value,
            "ended_at_s": max(now_s, at_s),
            "error": None if was_due else "the turn before it had not ended, or its user was still thinking",
        }

    def _probe(self) -> None:
        """How late this process wakes from short sleeps: its own noise."""
        while True:
            before_ns = time.perf_counter_ns()
            gevent.sleep(PROBE_S)
            self._loop_lags_s.append((time.perf_counter_ns() - before_ns) / _NS - PROBE_S)

    def _watch(self) -> None:
        """Follows the gaps of live measured streams, open ones too, and stops the run past the limit."""
        seen: dict[int, int] = {}
        while not self._stop.is_set():
            for index, stream in list(self._live.items()):
                gevent.sleep(0)  # whoever has bytes to read goes first
                stream.settle()
                if self._requests[index]["measured"]:
                    self._watch_stream(index, stream, time.perf_counter_ns(), seen)
            if self._abort_pause_s is not None and self.worst_gap_s > self._abort_pause_s:
                self.aborted_at_s = self._now_s()
                self._stop.set()
            gevent.sleep(PROBE_S * 4)

    def _watch_stream(self, index: int, stream: ChatStream, now_ns: int, seen: dict[int, int]) -> None:
        events = stream.events
        first = max(1, seen.get(index, 1))
        gaps = [events[k][0] - events[k - 1][0] for k in range(first, len(events))]
        seen[index] = len(events)
        is_open = stream.state.counted_tokens < self._requests[index]["max_tokens"]
        if events and is_open and stream.state.finish_reason is None:
            gaps.append(now_ns - events[-1][0])
        self.worst_gap_s = max([self.worst_gap_s, *(gap / _NS for gap in gaps)])


def stream_record(request: Mapping[str, Any], stream: ChatStream, t0_ns: int) -> dict[str, Any]:
    """What a stream saw, in seconds from `t0_ns`, as JSON values."""

    def at_s(at_ns: int | None) -> float | None:
        return None if at_ns is None else (at_ns - t0_ns) / _NS

    first_ns = stream.first_sent_ns
    return {
        "id": request["id"],
        "kind": request["kind"],
        "scheduled_at_s": request["at_s"],
        "outcome": stream.outcome.value,
        "sent_at_s": at_s(stream.sent_at_ns if first_ns is None else first_ns),
        "resent_at_s": None if first_ns is None else at_s(stream.sent_at_ns),
        "ended_at_s": at_s(stream.ended_at_ns),
        "events": [[at_s(at_ns), tokens, emit_ns] for at_ns, tokens, emit_ns in stream.events],
        "prompt_tokens": stream.state.prompt_tokens,
        "cached_tokens": stream.state.cached_tokens,
        "output_tokens": stream.state.output_tokens,
        "http_status": stream.status,
        "generation": stream.generation,
        "error": stream.fault,
        "timings": stream.state.timings,
    }
