"""A device that does nothing but obey: instant, or held at a gate, or broken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from engine.core.events import FinishedEvent, StepRecord, TokenEvent
from engine.core.executor import Executor, ModelInfo
from engine.core.plan import PrefillChunk
from engine.core.request import Request
from engine.notices import Crashed, Ended, Notice, Ready, Stepped
from engine.sim_backend import WordTokenizer
from tests.patience import DEADLINE_S

MODEL = ModelInfo(name="fake", context_tokens=1000, kv_capacity_tokens=4000)


class Gate:
    """Lets steps end: all of them while open, else as many as were allowed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = True
        self._allowed = 0
        self._waiting = 0

    def hold(self) -> None:
        with self._changed:
            self._open, self._allowed = False, 0

    def allow(self, number: int = 1) -> None:
        with self._changed:
            self._allowed += number
            self._changed.notify_all()

    def open(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def pass_through(self) -> None:
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._open or self._allowed, DEADLINE_S)
            self._waiting -= 1
            self._allowed -= not self._open

    def wait_for_arrival(self) -> None:
        """Returns once the engine thread waits at the gate."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._waiting and not self._allowed, DEADLINE_S)


class FakeExecutor(Executor):
    """The n-th token of a request is `base + n`, unless `tokens` names them."""

    def __init__(
        self, model: ModelInfo = MODEL, gate: Gate | None = None, tokens: Sequence[int] = ()
    ) -> None:
        self.rows: dict[str, int] = {}
        self.broken: Exception | None = None
        self.closed_by = ""
        self.prefilled: dict[str, int] = {}
        self._model = model
        self._gate = gate or Gate()
        self._tokens = tokens

    @property
    def info(self) -> ModelInfo:
        return self._model

    def start(self, request: Request) -> None:
        self.rows[request.id] = 0

    def release(self, request_id: str) -> None:
        self.rows.pop(request_id, None)

    def launch(self, decode: tuple[str, ...], prefill: tuple[PrefillChunk, ...]) -> tuple[int, ...]:
        for chunk in prefill:
            self.prefilled[chunk.request_id] = chunk.start + chunk.num_tokens
        completed = (chunk.request_id for chunk in prefill if chunk.completes_prompt)
        return tuple(self._next(request_id) for request_id in (*decode, *completed))

    def launch_rest(self, ticket: tuple[int, ...]) -> None: ...

    def wait_nearly(self, ticket: tuple[int, ...]) -> None:
        self.wait(ticket)

    def wait(self, ticket: tuple[int, ...]) -> tuple[int, ...]:
        self._gate.pass_through()
        if self.broken:
            raise self.broken
        return ticket

    def close(self) -> None:
        self.closed_by = threading.current_thread().name

    def _next(self, request_id: str) -> int:
        number = self.rows[request_id]
        self.rows[request_id] += 1
        return self._tokens[number % len(self._tokens)] if self._tokens else 100 + number


class FakeBackend:
    """Loads a fresh fake each time; `loading` may hold it up or break it."""

    def __init__(
        self,
        model: ModelInfo = MODEL,
        loading: Callable[[], None] = lambda: None,
        tokens: Sequence[int] = (),
        tokenizer: WordTokenizer | None = None,
    ) -> None:
        self.tokenizer = tokenizer or WordTokenizer()
        self.num_token_ids: int | None = 1000
        self.gate = Gate()
        self.loaded: list[FakeExecutor] = []
        self._model = model
        self._loading = loading
        self._tokens = tokens

    @property
    def executor(self) -> FakeExecutor:
        return self.loaded[-1]

    def load(self) -> FakeExecutor:
        self._loading()
        self.loaded.append(FakeExecutor(self._model, self.gate, self._tokens))
        return self.executor


class Inbox:
    """Collects notices, and lets a test wait for what they say."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.notices: list[Notice] = []

    def __call__(self, notice: Notice) -> None:
        with self._changed:
            self.notices.append(notice)
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE_S)

    def wait_ready(self, times: int = 1) -> None:
        self.wait_for(lambda: sum(isinstance(n, Ready) for n in self.notices) >= times)

    def wait_end(self, request_id: str) -> FinishedEvent:
        self.wait_for(lambda: self.ends(request_id))
        return self.ends(request_id)[0]

    def ends(self, request_id: str) -> list[FinishedEvent]:
        return [e for e in self._events() if isinstance(e, FinishedEvent) and e.request_id == request_id]

    def tokens(self, request_id: str) -> list[int]:
        return [e.token for e in self._events() if isinstance(e, TokenEvent) and e.request_id == request_id]

    def records(self) -> list[StepRecord]:
        return [n.record for n in self.notices if isinstance(n, Stepped)]

    def crashes(self) -> list[Crashed]:
        return [n for n in self.notices if isinstance(n, Crashed)]

    def ended(self) -> Ended | None:
        last = self.notices[-1] if self.notices else None
        return last if isinstance(last, Ended) else None

    def _events(self) -> list[TokenEvent | FinishedEvent]:
        return [event for n in self.notices if not isinstance(n, Ready) for event in n.events]
