"""The event loop's side of the engine: streams by request id, and all that is counted about them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.config_store import ConfigStore
from engine.core.admission import Refused
from engine.core.events import Event, FinishedEvent, StepRecord
from engine.core.executor import Executor, ModelInfo
from engine.core.request import FinishReason, Request
from engine.cost_store import CostStore
from engine.loop import EngineLoop
from engine.notices import Crashed, Ended, EngineState, Notice, Ready, Stepped, Unavailable
from engine.server.calibration import Calibrator
from engine.server.errors import ApiError, LengthFields, failure, refusal_error, unavailable
from engine.server.metrics import Metrics
from engine.server.stats import EndedRequest, Log, Refusal
from engine.server.stream import Stream
from engine.server.text import StopStrings, Tokenizer

_log = logging.getLogger(__name__)
_REMEMBER_STEPS = 8192
_REMEMBER_REQUESTS = 16384

_OUTCOMES = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "completed",
    FinishReason.ABORTED: "aborted",
    FinishReason.FAILED: "failed",
}


class Backend(Protocol):
    """What serves a model.

    Attributes:
        tokenizer: there once `load` has returned.
        num_token_ids: ids are below this; None when the model does not say.
    """

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def num_token_ids(self) -> int | None: ...

    def load(self) -> Executor:
        """Loads the model; called on the engine thread, again after a crash."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, as far as they said.

    Attributes:
        streams: the answer was wanted in pieces.
    """

    user: str | None = None
    session: str | None = None
    streams: bool = True


class Witness(Protocol):
    """Is told of every step, every request that is over and every one turned away. Called on the event
    loop: must not block.
    """

    def on_step(self, record: StepRecord, seq: int) -> None: ...

    def on_end(self, request: Request, caller: Caller, ended: EndedRequest) -> None: ...

    def on_refused(self, request: Request, caller: Caller, status: int, generation: int) -> None: ...


class Service:
    """Owns the engine loop and every stream. Used on the event loop only.

    Args:
        served_name: the model's name in the API; None takes the loaded model's own.
        learned: where the cost model is kept over restarts.
    """

    def __init__(
        self,
        backend: Backend,
        store: ConfigStore,
        served_name: str | None = None,
        witnesses: Sequence[Witness] = (),
        learned: CostStore | None = None,
    ) -> None:
        self.store = store
        self._learned = learned or CostStore()
        self.model: ModelInfo | None = None
        self.ready: asyncio.Future[ModelInfo]
        self.steps: Log[StepRecord] = Log(_REMEMBER_STEPS)
        self.ended: Log[EndedRequest] = Log(_REMEMBER_REQUESTS)
        self.refused: Log[Refusal] = Log(_REMEMBER_REQUESTS)
        self.streams: dict[str, Stream] = {}
        self._backend = backend
        self._served_name = served_name
        self._witnesses = witnesses
        self._callers: dict[str, Caller] = {}
        self._idle = asyncio.Event()
        self._engine_ended = asyncio.Event()
        current = store.current
        self.engine = EngineLoop(backend.load, self._deliver, current.config, current.generation)
        self.metrics = Metrics(lambda: self.engine.occupancy)
        self.metrics.generation.set(current.generation)
        self._calibrator = Calibrator(
            self.steps,
            self.engine.calibrate,
            lambda fit: self._learned.save(self._model_name, fit.costs, fit.errors),
        )

    # -- life ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the engine thread; `ready` tells when it may be used, or why never."""
        self._event_loop = asyncio.get_running_loop()
        self.ready = self._event_loop.create_future()
        self.engine.start()

    async def drain(self, grace_s: float) -> None:
        """Lets nobody in, waits for what runs for `grace_s` at most, and fails the rest."""
        self.engine.drain()
        if self.streams:
            self._idle.clear()
            try:
                await asyncio.wait_for(self._idle.wait(), grace_s)
            except TimeoutError:
                _log.warning("%d requests did not end within %g s", len(self.streams), grace_s)
        for stream in list(self.streams.values()):
            self._finish(stream, FinishReason.FAILED, unavailable(EngineState.STOPPING))

    async def close(self) -> None:
        """Ends the engine thread and waits for it."""
        self.engine.close()
        await self._engine_ended.wait()
        await self._event_loop.run_in_executor(None, self.engine.join)

    # -- requests ------------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Tokenizer:
        return self._backend.tokenizer

    @property
    def num_token_ids(self) -> int | None:
        return self._backend.num_token_ids

    @property
    def served_name(self) -> str:
        return self._served_name or self._model_name

    @property
    def _model_name(self) -> str:
        return self.model.name if self.model else ""

    @property
    def generation(self) -> int:
        return self.store.current.generation

    def open(self, request: Request, stops: Sequence[str], caller: Caller, fields: LengthFields) -> Stream:
        """Lets a request in; when it is too long, `fields` are named.

        Raises:
            ApiError: it was refused.
        """
        stream = Stream(request, self.tokenizer.detokenizer(), StopStrings(stops))
        verdict = self.engine.submit(request)
        if isinstance(verdict, Refused | Unavailable):
            raise self._refuse(request, caller, refusal_error(verdict, fields))
        self.streams[request.id] = stream
        self._callers[request.id] = caller
        return stream

    def leave(self, stream: Stream) -> None:
        """The client has gone, or has all it wanted: ends the request unless it has ended already."""
        self._finish(stream, FinishReason.ABORTED)

    def _refuse(self, request: Request, caller: Caller, error: ApiError) -> ApiError:
        code = error.code or ""
        self.metrics.on_refusal(code)
        self.refused.add(Refusal(self.engine.clock(), code, self.generation))
        for witness in self._witnesses:
            witness.on_refused(request, caller, error.status, self.generation)
        return error

    # -- notices -------------------------------------------------------------------------------------

    def _deliver(self, notice: Notice) -> None:
        """On the engine thread: one hand-over for all that a step brought about."""
        try:
            self._event_loop.call_soon_threadsafe(self._on_notice, notice)
        except RuntimeError:
            _log.debug("the event loop is closed; a notice is lost")

    def _on_notice(self, notice: Notice) -> None:
        match notice:
            case Stepped(record, events):
                self._on_step(record, events)
            case Ready(model):
                self._on_ready(model)
            case Crashed(message, events):
                self._end_all(events, failure(message, self.engine.state))
            case Ended(error, events):
                state = self.engine.state
                self._end_all(events, failure(str(error), state) if error else unavailable(state))
                self._on_ended(error)

    def _on_ready(self, model: ModelInfo) -> None:
        if self.model:
            self.metrics.recoveries.inc()
        elif costs := self._learned.load(model.name):
            self.engine.calibrate(costs)
        self.model = model
        if not self.ready.done():
            self.ready.set_result(model)

    def _on_step(self, record: StepRecord, events: list[Event]) -> None:
        seq = self.steps.add(record)
        num_tokens = 0
        for event in events:
            stream = self.streams.get(event.request_id)
            if stream is None:  # its client left while the step ran
                continue
            if isinstance(event, FinishedEvent):
                self._end(stream, event)
                continue
            if stream.stop_matched:  # it had ended in the engine too, and the event of that is on its way
                continue
            num_tokens += 1
            gap_s = stream.on_token(event)
            if gap_s is not None:
                self.metrics.on_gap(gap_s)
            if stream.stop_matched:
                self._finish(stream, FinishReason.STOP)
        self.metrics.on_step(record, num_tokens)
        self._calibrator.on_step(seq)
        for witness in self._witnesses:
            witness.on_step(record, seq)

    def _finish(self, stream: Stream, reason: FinishReason, error: ApiError | None = None) -> None:
        if stream.end is None and (event := self.engine.finish(stream.request.id, reason)):
            self._end(stream, event, error)

    def _end_all(self, events: Sequence[FinishedEvent], error: ApiError) -> None:
        for event in events:
            if stream := self.streams.get(event.request_id):
                self._end(stream, event, error)

    def _end(self, stream: Stream, event: FinishedEvent, error: ApiError | None = None) -> None:
        del self.streams[event.request_id]
        end = stream.on_finished(event, error)
        request = stream.request
        ended = EndedRequest(
            id=request.id,
            outcome=_OUTCOMES[event.reason],
            prompt_tokens=request.num_prompt_tokens,
            last_generation=self.generation,
            timeline=end.timeline,
        )
        self.ended.add(ended)
        self.metrics.on_end(ended)
        caller = self._callers.pop(request.id)
        for witness in self._witnesses:
            witness.on_end(request, caller, ended)
        if not self.streams:
            self._idle.set()

    def _on_ended(self, error: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(error or RuntimeError("stopped before it was ready"))
            self.ready.exception()  # retrieved: whoever waits still gets it, and nobody is warned about it
        elif error:
            _log.error("the engine has stopped for good: %s", error)
        self._engine_ended.set()

    # -- config --------------------------------------------------------------------------------------

    def apply_config(self) -> None:
        """Puts the store's current config in force from the next plan on."""
        current = self.store.current
        self.engine.configure(current.config, current.generation)
        self.metrics.generation.set(current.generation)

    @property
    def is_ready(self) -> bool:
        return self.engine.state is EngineState.READY

    @property
    def is_alive(self) -> bool:
        return self.engine.is_alive and self.engine.state is not EngineState.DEAD
