import socket
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux notes when a packet came")
def test_what_is_read_late_is_stamped_when_it_came(pair: tuple[socket.socket, socket.socket]) -> None:
    near, far = pair
    stamped = StampedSocket(near)
    for _ in range(50):  # the kernel begins to take notes a moment after it was asked to
        before_ns = time.perf_counter_ns()
        far.sendall(b"word")
        after_ns = time.perf_counter_ns()
        stamped.receive()
        if before_ns <= stamped.came_at_ns <= after_ns:
            return
    pytest.fail("no packet was stamped when it came")


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
