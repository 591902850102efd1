"""One streaming chat request, its events stamped when their bytes came.

Locust's own ways of reading a stream collect bytes into blocks first, which turns most gaps into zero
and makes the others too long (measured in November 2026: `FastHttpSession.iter_lines` zeroes 71–82 % of
gaps). Here the loop that reads does nothing else: it stamps the bytes, takes HTTP's framing off to know where
they end, and reads again. What they say is decoded later, in `settle`. Events that came in one read share
its stamp: that is when the client could first know of either.

Works on plain sockets and, unchanged, on gevent's.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Mapping

from engine.core.json_text import parse_json
from engine.core.records import Outcome
from loadtests.client.arrivals import StampedResponse
from loadtests.client.http_body import Body, ChunkedBody, PlainBody
from loadtests.client.sse import SseParser, StreamState, error_message
from loadtests.client.target import open_connection

_REFUSALS = (429, 503)
_BAD_FINISHES = ("error", "failed", "aborted")
_MOST_UNREAD = 64  # arrivals decoded at once when nobody settles in between
_END_MARK = b"[DONE]"
CHAT_PATH = "/v1/chat/completions"


class ChatStream:
    """One streaming request on a connection of its own; `events` and `state` grow while `run` reads, up to
    the last `settle`.

    Attributes:
        events: (arrival ns, tokens, emit ns or None) of every content event.
        sent_at_ns: just before the request was written; None until then.
        ended_at_ns: when the last byte, refusal or failure came; None until then.
        retry_after_s: what a refusal asked for.
    """

    def __init__(self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float = 600.0) -> None:
        self._connection, base = open_connection(url, timeout_s)
        self._connection.response_class = StampedResponse
        self._path, self._headers, self._body = base + CHAT_PATH, headers, body
        self._parser = SseParser()
        self._arrived: list[tuple[int, bytes]] = []
        self.state = StreamState()
        self.events: list[tuple[int, int, int | None]] = []
        self.sent_at_ns: int | None = None
        self.ended_at_ns: int | None = None
        self.status: int | None = None
        self.generation: int | None = None
        self.retry_after_s: float | None = None
        self.error: str | None = None
        self.left: Outcome | None = None
        self.first_sent_ns: int | None = None  # of the first attempt, when this is a retry

    def connect(self) -> None:
        """Connects ahead of the send, so that the handshake does not delay it; a failure shows in `run`."""
        try:
            self._connection.connect()
        except OSError as error:
            self.error = f"cannot connect: {error}"

    def run(self) -> None:
        """Sends the request and reads its answer to the end. A server's fault is noted, not raised."""
        self.sent_at_ns = time.perf_counter_ns()
        try:
            if self.error is None:
                self._connection.request("POST", self._path, self._body, dict(self._headers))
                self._read(self._connection.getresponse())
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.error = self.error or f"{type(error).__name__}: {error}".removesuffix(": ")
        finally:
            self.ended_at_ns = self.ended_at_ns or time.perf_counter_ns()
            self.settle()
            self._connection.close()

    def leave(self, outcome: Outcome) -> None:
        """Gives the request up as `outcome`; whoever runs it has to be interrupted as well."""
        self.left = self.left or outcome
        self.ended_at_ns = self.ended_at_ns or time.perf_counter_ns()

    @property
    def outcome(self) -> Outcome:
        """How the request ended for its client, once it did."""
        if self.sent_at_ns is None and self.first_sent_ns is None:
            return Outcome.NEVER_SENT
        if self.status in _REFUSALS:
            return Outcome.REFUSED
        if self.state.finish_reason and not self.state.error:
            bad = self.state.finish_reason in _BAD_FINISHES
            return Outcome.FAILED if bad else Outcome.COMPLETED
        return self.left or Outcome.FAILED

    @property
    def fault(self) -> str | None:
        """What went wrong, in one line; None for a request that completed."""
        if self.outcome is Outcome.COMPLETED:
            return None
        cut = "the stream was cut before its finish reason" if self.status == 200 and not self.left else None
        return self.state.error or self.error or cut

    def settle(self) -> None:
        """Decodes what has arrived since the last call."""
        arrived, self._arrived = self._arrived, []
        for at_ns, payload in arrived:
            for event in self._parser.feed(payload):
                num_tokens, emitted_ns = self.state.take(event)
                if num_tokens is not None:
                    self.events.append((at_ns, num_tokens, emitted_ns))

    def _read(self, response: http.client.HTTPResponse) -> None:
        assert isinstance(response, StampedResponse)
        self.status = response.status
        self.generation = _whole(response.getheader("x-config-generation"))
        if response.status != 200:
            self._read_refusal(response)
        elif "event-stream" not in (response.getheader("content-type") or ""):
            self.error = "the answer is not an event stream"
        else:
            self._read_events(response)

    def _read_refusal(self, response: http.client.HTTPResponse) -> None:
        self.retry_after_s = _number(response.getheader("retry-after"))
        self.error = f"HTTP {response.status}: {_message(response.read())}"

    def _read_events(self, response: StampedResponse) -> None:
        body: Body = ChunkedBody() if response.chunked else PlainBody(response.length)
        stamped, tail, may_end = response.stamped, b"", False
        data = response.first_bytes()
        while data:
            payload = body.feed(data)
            self._arrived.append((stamped.came_at_ns, payload))
            # A cheap look for the end; what looks like it may be a part of the text.
            tail = tail[1 - len(_END_MARK) :] + payload
            may_end = may_end or _END_MARK in tail
            if may_end or len(self._arrived) >= _MOST_UNREAD:
                self.settle()
            if body.ended or self.state.done:
                self.ended_at_ns = self.ended_at_ns or stamped.came_at_ns
                return
            data = stamped.receive()


def _message(raw: bytes) -> str:
    try:
        answer = parse_json(raw)
    except ValueError:
        return raw[:200].decode("utf-8", errors="replace").strip()
    return error_message(answer) if isinstance(answer, dict) else str(answer)[:200]


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None
