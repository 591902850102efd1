"""Where a body of HTTP/1.1 ends: chunk framing taken off, however the packets fell. No I/O."""

from __future__ import annotations

from typing import Protocol

_HEX_DIGITS = b"0123456789abcdefABCDEF"
_MOST_DIGITS = 15
_LONGEST_LINE = 4096


class Body(Protocol):
    """Takes what arrives and gives what it says.

    Attributes:
        ended: nothing more belongs to this body.
    """

    ended: bool

    def feed(self, data: bytes) -> bytes:
        """The payload in `data`. Raises: ValueError for a broken framing."""


class ChunkedBody:
    """Implements `Body` for `Transfer-Encoding: chunked`. Trailers are not read."""

    def __init__(self) -> None:
        self.ended = False
        self._pending = b""  # of a chunk's size line
        self._left = 0  # of a chunk, with the line end after it

    def feed(self, data: bytes) -> bytes:
        if self._pending:
            data, self._pending = self._pending + data, b""
        payload = []
        at = 0
        while at < len(data) and not self.ended:
            if self._left:
                payload.append(data[at : at + max(0, self._left - 2)])
                taken = min(self._left, len(data) - at)
                self._left -= taken
                at += taken
            else:
                at = self._open_chunk(data, at)
        return b"".join(payload)

    def _open_chunk(self, data: bytes, at: int) -> int:
        """Reads a size line; keeps it for later when its end has not come. Returns where the chunk begins."""
        end = data.find(b"\n", at)
        line = data[at:end] if end >= 0 else data[at:]
        if end < 0 and len(line) < _LONGEST_LINE:
            self._pending = line
            return len(data)
        size = line.partition(b";")[0].strip()
        if not 1 <= len(size) <= _MOST_DIGITS or size.strip(_HEX_DIGITS):
            raise ValueError(f"an HTTP chunk begins with {line[:40]!r} instead of its size")
        self._left = int(size, 16) + 2
        self.ended = self._left == 2
        return end + 1


class PlainBody:
    """Implements `Body` for one of known length, or one that ends with its connection (`length` None)."""

    def __init__(self, length: int | None) -> None:
        self._left = length
        self.ended = length == 0

    def feed(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        payload = data[: self._left]
        self._left -= len(payload)
        self.ended = self._left == 0
        return payload
