from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from loadtests.play import workers
from loadtests.play.workers import Conductor


class Workers:
    """Locust's side of load processes: `slow` ones tell what they saw after so many looks at who is there,
    `dying` ones are gone at the next.
    """

    def __init__(self, slow: Mapping[str, int], dying: Sequence[str] = ()) -> None:
        self._listeners: dict[str, Callable[..., None]] = {}
        self._looks_left = dict(slow)
        self._dying = list(dying)
        self._is_ending = False
        self.heard: list[Any] = []
        self.conductor = Conductor(self, self._here, lambda rows, records: self.heard.extend(records))

    def lose(self, *workers: str) -> None:
        for worker in workers:
            self._dying.remove(worker)

    def register_message(self, name: str, listener: Callable[..., None]) -> None:
        self._listeners[name] = listener

    def send_message(self, name: str, data: Any, worker: str) -> None:
        self._is_ending = True

    def _here(self) -> list[str]:
        if not self._is_ending:
            return [*self._looks_left, *self._dying]
        for worker in self._looks_left:
            self._looks_left[worker] -= 1
            if self._looks_left[worker] == 0:
                self.tell("evenflow saw", worker, {"rows": [], "records": [worker]})
                self.tell("evenflow ended", worker, {})
        return list(self._looks_left)

    def tell(self, name: str, worker: str, data: Any) -> None:
        self._listeners[name](msg=SimpleNamespace(node_id=worker, data=data))


@pytest.fixture(autouse=True)
def _in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_TELL_EVERY_S", 0.0)


def test_nobody_who_is_still_there_is_given_up_however_long_it_takes() -> None:
    processes = Workers(slow={"a": 1, "b": 500})
    assert processes.conductor.gather() == 0
    assert processes.heard == ["a", "b"]


def test_who_is_gone_is_counted_and_not_waited_for() -> None:
    processes = Workers(slow={"a": 20}, dying=["b", "c"])
    assert processes.conductor.gather() == 2
    assert processes.heard == ["a"]


def test_who_died_before_the_end_is_counted_and_who_left_is_not() -> None:
    processes = Workers(slow={"a": 20}, dying=["b", "c"])
    processes.conductor.meet()
    processes.lose("b", "c")
    processes.tell("evenflow ended", "c", {})
    assert processes.conductor.gather() == 1


def test_who_joined_later_and_died_is_counted() -> None:
    processes = Workers(slow={"a": 20})
    processes.conductor.meet()
    processes.tell("evenflow saw", "b", {"rows": [], "records": []})
    assert processes.conductor.gather() == 1


def test_the_dead_of_an_earlier_test_are_not_counted_again() -> None:
    processes = Workers(slow={"a": 20}, dying=["b"])
    processes.conductor.meet()
    processes.lose("b")
    processes.conductor.meet()
    assert processes.conductor.gather() == 0
