from __future__ import annotations

from collections.abc import Callable

from engine.server.lease import Lease


class FakeLoop:
    """Timers that run when told to."""

    def __init__(self) -> None:
        self.timers: list[FakeTimer] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(seconds, call))
        return self.timers[-1]

    def run(self) -> None:
        for timer in self.timers:
            if not timer.cancelled:
                timer.call()


class FakeTimer:
    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self.seconds, self.call, self.cancelled = seconds, call, False

    def cancel(self) -> None:
        self.cancelled = True


def test_a_renewal_starts_the_countdown_again() -> None:
    loop, ends = FakeLoop(), list[int]()
    lease = Lease(loop.call_later, lambda: ends.append(1))
    lease.renew(5.0)
    lease.renew(7.0)
    assert [(timer.seconds, timer.cancelled) for timer in loop.timers] == [(5.0, True), (7.0, False)]
    loop.run()
    assert ends == [1]


def test_nothing_ends_after_a_cancel() -> None:
    loop, ends = FakeLoop(), list[int]()
    lease = Lease(loop.call_later, lambda: ends.append(1))
    lease.cancel()
    lease.renew(5.0)
    lease.cancel()
    loop.run()
    assert ends == []
