import io
import socket
import struct
import sys
import time
from collections.abc import Iterator

import pytest

from loadtests.client.arrivals import StampedSocket


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection on loopback, which delivers within `send`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        yield near, far


class NotingSocket:
    """A socket whose one packet came at `came_ns` on the clock of the kernel's notes."""

    def __init__(self, came_ns: int) -> None:
        self._note = struct.pack("@ll", *divmod(came_ns, 10**9))

    def makefile(self, mode: str, buffering: int) -> io.BytesIO:
        return io.BytesIO()

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self._kind = option

    def recvmsg(self, size: int, space: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, None]:
        return b"word", [(socket.SOL_SOCKET, self._kind, self._note)], 0, None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux notes when a packet came")
def test_what_is_read_late_is_stamped_when_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    late_ns, now_ns, wall_ns = 300_000_000, 70 * 10**9, 1_700_000_000 * 10**9
    monkeypatch.setattr("loadtests.client.arrivals.time.perf_counter_ns", lambda: now_ns)
    monkeypatch.setattr("loadtests.client.arrivals.time.time_ns", lambda: wall_ns)
    stamped = StampedSocket(NotingSocket(wall_ns - late_ns))
    assert stamped.receive() == b"word"
    assert stamped.came_at_ns == now_ns - late_ns


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux notes when a packet came")
def test_the_kernel_notes_that_packets_came_before_they_were_read(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    near, far = pair
    stamped = StampedSocket(near)
    for _ in range(100_000):  # the kernel begins to take notes a moment after it was asked to
        far.sendall(b"word")
        sent_ns = time.perf_counter_ns()
        stamped.receive()
        if stamped.came_at_ns <= sent_ns:
            return
    pytest.fail("no packet was stamped before it was read")


def test_without_notes_the_stamp_is_that_of_the_read(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtests.client.arrivals.sys.platform", "darwin")
    near, far = pair
    stamped = StampedSocket(near)
    far.sendall(b"word")
    before_ns = time.perf_counter_ns()
    assert stamped.receive() == b"word"
    assert stamped.came_at_ns >= before_ns


def test_a_clock_that_was_set_meanwhile_is_not_believed(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = pair
    stamped = StampedSocket(near)
    far.sendall(b"word")
    monkeypatch.setattr("loadtests.client.arrivals.time.time_ns", lambda: 0)
    before_ns = time.perf_counter_ns()
    stamped.receive()
    assert stamped.came_at_ns >= before_ns


def test_the_end_of_a_connection_is_no_bytes(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    far.close()
    assert StampedSocket(near).receive() == b""
