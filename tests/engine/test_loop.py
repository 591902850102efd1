from __future__ import annotations

import logging
import random
import threading
import weakref
from collections.abc import Iterator

import pytest

from engine.core.admission import Admitted, RefusalCode, Refused
from engine.core.config import SchedulerConfig
from engine.core.request import FinishReason, Request
from engine.loop import EngineLoop
from engine.notices import EngineState, Unavailable
from tests.engine.fakes import FakeBackend, FakeExecutor, Inbox
from tests.patience import DEADLINE_S


class Rig:
    def __init__(self, backend: FakeBackend, config: SchedulerConfig | None = None) -> None:
        self.backend = backend
        self.inbox = Inbox()
        self.loop = EngineLoop(backend.load, self.inbox, config)

    def start(self) -> Rig:
        self.loop.start()
        self.inbox.wait_ready()
        return self

    def submit(self, name: str, prompt: int = 5, max_tokens: int = 3) -> object:
        return self.loop.submit(
            Request(id=name, prompt=[1] * prompt, max_tokens=max_tokens, arrived_at_s=self.loop.clock())
        )

    def close(self) -> None:
        self.backend.gate.open()
        self.loop.close()
        assert self.loop.join(DEADLINE_S)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig(FakeBackend(), SchedulerConfig(prefill_chunk_tokens=4, solo_chunk_tokens=8)).start()
    yield rig
    rig.close()


def test_a_request_gets_its_tokens_and_one_end(rig: Rig) -> None:
    assert isinstance(rig.submit("a"), Admitted)
    assert rig.inbox.wait_end("a").reason is FinishReason.LENGTH
    assert rig.inbox.tokens("a") == [100, 101, 102]
    assert len(rig.inbox.ends("a")) == 1


def test_requests_that_come_later_wake_an_idle_engine(rig: Rig) -> None:
    for name in ("a", "b", "c"):
        rig.submit(name)
        rig.inbox.wait_end(name)


def test_a_newcomer_is_in_the_very_next_plan(rig: Rig) -> None:
    rig.backend.gate.hold()
    rig.submit("a", max_tokens=50)
    rig.backend.gate.wait_for_arrival()
    rig.submit("b")
    rig.backend.gate.allow(1)
    rig.backend.gate.wait_for_arrival()
    assert rig.backend.executor.prefilled.get("b")


def test_a_finished_row_is_freed_by_the_next_plan(rig: Rig) -> None:
    rig.backend.gate.hold()
    rig.submit("a", max_tokens=50)
    rig.submit("b", max_tokens=50)
    rig.backend.gate.wait_for_arrival()
    event = rig.loop.finish("a", FinishReason.ABORTED)
    assert event
    assert event.reason is FinishReason.ABORTED
    rig.backend.gate.allow(3)
    rig.backend.gate.wait_for_arrival()
    assert list(rig.backend.executor.rows) == ["b"]
    assert rig.loop.finish("a", FinishReason.ABORTED) is None


def test_the_last_row_is_freed_though_nothing_else_runs(rig: Rig) -> None:
    rig.backend.gate.hold()
    rig.submit("a", max_tokens=50)
    rig.backend.gate.wait_for_arrival()
    rig.loop.finish("a", FinishReason.ABORTED)
    rig.backend.gate.open()
    rig.submit("b")
    rig.inbox.wait_end("b")
    assert "a" not in rig.backend.executor.rows


def test_a_config_takes_hold_at_the_next_plan(rig: Rig) -> None:
    rig.backend.gate.hold()
    rig.submit("a", prompt=40, max_tokens=1)
    rig.backend.gate.wait_for_arrival()
    rig.loop.configure(SchedulerConfig(solo_chunk_tokens=32), 7)
    rig.backend.gate.open()
    assert rig.inbox.wait_end("a").reason is FinishReason.LENGTH
    assert [r.work.prefill_tokens for r in rig.inbox.records()] == [8, 32]
    assert rig.inbox.records()[-1].generation == 7


def test_nobody_comes_in_while_the_model_loads() -> None:
    may_load = threading.Event()
    rig = Rig(FakeBackend(loading=lambda: assert_set(may_load)))
    rig.loop.start()
    assert rig.submit("a") == Unavailable(EngineState.LOADING)
    may_load.set()
    rig.inbox.wait_ready()
    assert isinstance(rig.submit("a"), Admitted)
    rig.close()


def assert_set(event: threading.Event) -> None:
    assert event.wait(DEADLINE_S)


def test_a_crash_fails_everybody_inside_and_the_next_request_is_served(rig: Rig) -> None:
    rig.backend.gate.hold()
    for name in ("a", "b", "c"):
        rig.submit(name, max_tokens=50)
    rig.backend.gate.wait_for_arrival()
    rig.backend.executor.broken = RuntimeError("out of memory")
    rig.backend.gate.open()
    rig.inbox.wait_ready(times=2)
    assert [len(rig.inbox.ends(name)) for name in ("a", "b", "c")] == [1, 1, 1]
    assert rig.inbox.wait_end("a").reason is FinishReason.FAILED
    assert "out of memory" in rig.inbox.crashes()[0].message
    assert [executor.closed_by for executor in rig.backend.loaded] == ["engine", ""]
    assert isinstance(rig.submit("d"), Admitted)
    assert rig.inbox.wait_end("d").reason is FinishReason.LENGTH
    assert rig.loop.state is EngineState.READY


def test_a_crashed_executor_is_gone_before_the_next_one_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("engine.loop"), "propagate", False)  # pytest keeps all it is told
    broken = threading.Event()
    made: list[weakref.ref[FakeExecutor]] = []
    gone: list[bool] = []

    class Executor(FakeExecutor):
        def wait(self, ticket: tuple[int, ...]) -> tuple[int, ...]:
            if broken.is_set():
                raise RuntimeError("out of memory")
            return ticket

    def build() -> FakeExecutor:
        broken.clear()
        gone.extend(reference() is None for reference in made)
        executor = Executor()
        made.append(weakref.ref(executor))
        return executor

    inbox = Inbox()
    loop = EngineLoop(build, inbox)
    loop.start()
    inbox.wait_ready()
    broken.set()
    loop.submit(Request(id="a", prompt=[1] * 5, max_tokens=3, arrived_at_s=loop.clock()))
    inbox.wait_ready(times=2)
    loop.close()
    assert loop.join(DEADLINE_S)
    assert gone == [True]


def test_an_executor_that_keeps_crashing_is_given_up(rig: Rig) -> None:
    for time in range(1, 4):
        rig.inbox.wait_ready(time)
        rig.backend.executor.broken = RuntimeError("broken for good")
        rig.submit(f"r{time}")
        assert rig.inbox.wait_end(f"r{time}").reason is FinishReason.FAILED
    rig.inbox.wait_for(rig.inbox.ended)
    assert rig.loop.state is EngineState.DEAD
    assert rig.submit("late") == Unavailable(EngineState.DEAD)
    assert all(executor.closed_by == "engine" for executor in rig.backend.loaded)


def test_a_model_that_does_not_load_ends_the_engine() -> None:
    def fail() -> None:
        raise OSError("no such model")

    rig = Rig(FakeBackend(loading=fail))
    rig.loop.start()
    rig.inbox.wait_for(rig.inbox.ended)
    ended = rig.inbox.ended()
    assert ended
    assert str(ended.error) == "no such model"
    assert rig.loop.state is EngineState.DEAD


def test_draining_lets_nobody_in_and_lets_the_rest_end(rig: Rig) -> None:
    rig.backend.gate.hold()
    rig.submit("a")
    rig.loop.drain()
    verdict = rig.submit("b")
    assert isinstance(verdict, Refused)
    assert verdict.code is RefusalCode.STOPPING
    rig.backend.gate.open()
    assert rig.inbox.wait_end("a").reason is FinishReason.LENGTH


def test_a_crash_while_draining_is_the_end(rig: Rig) -> None:
    rig.backend.gate.hold()
    rig.submit("a", max_tokens=50)
    rig.backend.gate.wait_for_arrival()
    rig.loop.drain()
    rig.backend.executor.broken = RuntimeError("out of memory")
    rig.backend.gate.open()
    assert rig.loop.join(DEADLINE_S)
    assert rig.inbox.wait_end("a").reason is FinishReason.FAILED
    assert len(rig.backend.loaded) == 1
    assert rig.loop.state is EngineState.STOPPED


def test_who_drains_while_the_model_loads_is_stopping() -> None:
    loads, may_load = threading.Event(), threading.Event()

    def load() -> None:
        loads.set()
        assert_set(may_load)

    rig = Rig(FakeBackend(loading=load))
    rig.loop.start()
    assert_set(loads)
    rig.loop.drain()
    assert rig.submit("a") == Unavailable(EngineState.STOPPING)
    may_load.set()
    rig.inbox.wait_ready()
    assert rig.loop.state is EngineState.STOPPING
    rig.close()


def test_closing_fails_who_is_inside_and_closes_the_executor_on_its_thread(rig: Rig) -> None:
    rig.backend.gate.hold()
    rig.submit("a", max_tokens=500)
    rig.backend.gate.wait_for_arrival()
    rig.loop.close()
    rig.backend.gate.open()
    assert rig.loop.join(DEADLINE_S)
    assert rig.inbox.wait_end("a").reason is FinishReason.FAILED
    assert rig.inbox.ended()
    assert rig.backend.executor.closed_by == "engine"
    assert rig.loop.state is EngineState.STOPPED


@pytest.mark.parametrize("seed", range(5))
def test_every_request_ends_exactly_once_whatever_threads_do(rig: Rig, seed: int) -> None:
    ended: list[str] = []

    def client(number: int) -> None:
        chance = random.Random(f"{seed}/{number}")
        for turn in range(30):
            name = f"{number}.{turn}"
            verdict = rig.submit(name, prompt=chance.randint(1, 30), max_tokens=chance.randint(1, 12))
            assert isinstance(verdict, Admitted | Refused)
            if isinstance(verdict, Refused):
                continue
            if chance.random() < 0.6 and rig.loop.finish(name, FinishReason.ABORTED):
                ended.append(name)
            else:
                rig.inbox.wait_end(name)
                ended.append(name)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    rig.submit("last")
    rig.inbox.wait_end("last")
    assert len(ended) == len(set(ended))
    assert all(len(rig.inbox.ends(name)) <= 1 for name in ended)
    assert rig.loop.occupancy.num_running == rig.loop.occupancy.num_waiting == 0
    assert set(rig.backend.executor.rows) <= {"last"}
