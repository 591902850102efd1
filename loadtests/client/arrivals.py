"""When bytes came: a socket's read side that stamps what it reads.

A client that is kept off the CPU reads late, and what it reads late looks like a pause of the server. Linux
notes for every packet when it came; that moment, taken to our own clock, is the stamp. Where there is no
such note (TLS, other systems) it is the moment of the read. When several packets waited to be read together,
the kernel keeps the note of the last one.
"""

from __future__ import annotations

import http.client
import io
import ssl
import struct
import sys
import time
from typing import Any

READ_BYTES = 1 << 14
_SO_TIMESTAMPNS = 35  # <asm-generic/socket.h>; Python's socket module has no name for it
_NOTE = struct.Struct("@ll")  # struct timespec
_NOTE_SPACE = 64
# A note from longer ago, or from the future, means that somebody set the clock meanwhile.
_MOST_AGE_NS = 10 * 10**9


class StampedSocket(io.RawIOBase):
    """The read side of a connected socket.

    Attributes:
        came_at_ns: when the bytes that were read last had come, on `time.perf_counter_ns`.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._open = sock.makefile("rb", buffering=0)  # keeps the socket when http.client lets go of it
        self._has_notes = _asks_for_notes(sock)
        self.came_at_ns = 0

    def receive(self) -> bytes:
        """The next bytes; none at the end."""
        if not self._has_notes:
            data: bytes = self._sock.recv(READ_BYTES)
            self.came_at_ns = time.perf_counter_ns()
            return data
        data, notes, _, _ = self._sock.recvmsg(READ_BYTES, _NOTE_SPACE)
        self.came_at_ns = time.perf_counter_ns() - _age_ns(notes, time.time_ns())
        return data

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        assert len(buffer) >= READ_BYTES
        data = self.receive()
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._open.close()
        super().close()


def _asks_for_notes(sock: Any) -> bool:
    if sys.platform != "linux" or isinstance(sock, ssl.SSLSocket):
        return False
    try:
        sock.setsockopt(1, _SO_TIMESTAMPNS, 1)  # 1 is SOL_SOCKET
    except OSError:
        return False
    return True


def _age_ns(notes: list[tuple[int, int, bytes]], now_ns: int) -> int:
    """How long ago, on the clock that the kernel's notes are made by; 0 without a note."""
    for _, kind, data in notes:
        if kind == _SO_TIMESTAMPNS and len(data) == _NOTE.size:
            seconds, nanoseconds = _NOTE.unpack(data)
            age_ns: int = now_ns - (seconds * 10**9 + nanoseconds)
            return age_ns if 0 <= age_ns <= _MOST_AGE_NS else 0
    return 0


class StampedResponse(http.client.HTTPResponse):
    """A response whose head is read through `stamped`, and whose body the caller reads there."""

    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp.close()
        self.stamped = StampedSocket(sock)
        self.fp = io.BufferedReader(self.stamped, READ_BYTES)

    def first_bytes(self) -> bytes:
        """Of the body: those that came with the head, or else the next; none when there is no body."""
        return b"" if self.isclosed() else self.fp.peek()
