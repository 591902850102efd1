"""The engine thread: it builds the executor, steps it, and closes it; nobody else touches the device.

Other threads talk to it by two calls, `submit` and `finish`, which take effect between a step's plan
and its commit, and hear from it by notices. Nothing here knows of HTTP or asyncio, and nothing but ids,
requests and notices crosses, so that the server could live in another process.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from engine.core.admission import Admitted, Refused
from engine.core.config import SchedulerConfig
from engine.core.cost_model import CostModel
from engine.core.events import Event, FinishedEvent, StepRecord
from engine.core.executor import Executor, ModelInfo
from engine.core.occupancy import Occupancy
from engine.core.pipeline import Pipeline
from engine.core.request import FinishReason, Request
from engine.core.scheduler import Scheduler, run_step
from engine.core.timeline import Timeline
from engine.notices import Crashed, Ended, EngineState, Notice, Ready, Stepped, Unavailable
from engine.warmup import warm_up

_log = logging.getLogger(__name__)

# A device that fails this often within the window is not going to get well by loading again.
_MAX_CRASHES = 3
_CRASH_WINDOW_S = 600.0


class EngineLoop:
    """Steps one executor on a thread of its own. Every method may be called from any thread.

    Args:
        build: loads the model. Called on the engine thread, and again after a crash.
        deliver: takes notices, on the engine thread; it must return at once and not raise.
    """

    def __init__(
        self,
        build: Callable[[], Executor],
        deliver: Callable[[Notice], None],
        config: SchedulerConfig | None = None,
        generation: int = 1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.clock = clock
        self._build = build
        self._deliver = deliver
        self._config = config or SchedulerConfig()
        self._generation = generation
        self._costs: CostModel | None = None  # not learned yet
        # Guards the four below. Taken before the scheduler's own lock, never after it.
        self._door = threading.Lock()
        self._scheduler: Scheduler | None = None
        self._inside: dict[str, Request] = {}
        self._state = EngineState.LOADING
        self._draining = False
        self._closing = False
        self._wake = threading.Event()
        self._crashes: deque[float] = deque(maxlen=_MAX_CRASHES)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # -- from any thread -----------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    @property
    def state(self) -> EngineState:
        return self._state

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs, or has not been started yet."""
        return self._thread.ident is None or self._thread.is_alive()

    @property
    def occupancy(self) -> Occupancy:
        scheduler = self._scheduler
        return scheduler.occupancy if scheduler else Occupancy()

    @property
    def costs(self) -> CostModel | None:
        """What was learned of this machine; None until then."""
        return self._costs

    def submit(self, request: Request) -> Admitted | Refused | Unavailable:
        """Lets the request in, or says why not. Once admitted it ends in exactly one `FinishedEvent`:
        returned by `finish`, or in a notice.
        """
        with self._door:
            if self._scheduler is None:
                return Unavailable(self._state)
            verdict = self._scheduler.submit(request)
            if isinstance(verdict, Admitted):
                self._inside[request.id] = request
                self._wake.set()
            return verdict

    def finish(self, request_id: str, reason: FinishReason) -> FinishedEvent | None:
        """Ends a request from outside; its row is free one plan later. None when it has ended already
        (its event is in a notice, perhaps still on its way).
        """
        with self._door:
            if self._scheduler is None:
                return None
            event = self._scheduler.finish(request_id, reason, self.clock())
            if event:
                self._inside.pop(request_id, None)
                self._wake.set()
            return event

    def configure(self, config: SchedulerConfig, generation: int) -> None:
        """Replaces the config; takes hold at the next plan. A generation that is in force stays as it is."""
        with self._door:
            if generation == self._generation:
                return
            self._config, self._generation = config, generation
            if self._scheduler:
                self._scheduler.configure(config, generation)
            self._wake.set()

    def calibrate(self, costs: CostModel) -> None:
        """Replaces the cost model behind predictions and the paced policy."""
        with self._door:
            self._costs = costs
            if self._scheduler:
                self._scheduler.calibrate(costs)

    def drain(self) -> None:
        """Admits nobody from now on; what is inside goes on. A crash is the end then: nobody is left to load
        the model for.
        """
        with self._door:
            self._draining = True
            if self._state not in (EngineState.STOPPED, EngineState.DEAD):
                self._state = EngineState.STOPPING
            if self._scheduler:
                self._scheduler.stop()

    def close(self) -> None:
        """Ends the thread after the step in hand; what is still inside fails. Does not wait for it."""
        self.drain()
        self._closing = True
        self._wake.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the thread to end; whether it has. False at once when it never started."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- the engine thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        error: Exception | None = None
        try:
            while not self._draining and (crash := self._serve()):
                self._raise_if_hopeless(crash)
        except Exception as caught:  # noqa: BLE001  whatever a backend raises, its clients hear of it
            error = caught
        self._state = EngineState.DEAD if error else EngineState.STOPPED
        self._deliver(Ended(error, self._take_all()))

    def _serve(self) -> str | None:
        """One executor's life. Returns what it crashed on, None when it was closed.

        Raises:
            Exception: it could not be loaded.
        """
        executor = self._build()
        try:
            warm_up(executor, self.clock)
            scheduler = self._open(executor.info)
            try:
                self._step_until_closing(scheduler, Pipeline(executor))
            except Exception as crash:  # noqa: BLE001  a backend may raise anything
                _log.exception("the executor failed; every request inside ends")
                with self._door:
                    self._enter(EngineState.RECOVERING)
                message = f"{type(crash).__name__}: {crash}"
                self._deliver(Crashed(message, self._take_all()))
                # Not the crash itself: its traceback holds the executor, and the next one is about to load.
                return message
            return None
        finally:
            self._close(executor)

    def _open(self, model: ModelInfo) -> Scheduler:
        # What lives now lives as long as the model does: no collection need look at it again.
        gc.collect()
        gc.freeze()
        with self._door:
            scheduler = Scheduler(model, self._config, generation=self._generation, lock=threading.Lock())
            if self._costs:
                # Learned before the crash: a start, but not taken for proven.
                scheduler.calibrate(self._costs)
            if self._draining:
                scheduler.stop()
            self._scheduler = scheduler
            self._enter(EngineState.READY)
        self._deliver(Ready(model))
        return scheduler

    def _enter(self, state: EngineState) -> None:
        """Under the door's lock: who drains is stopping, whatever happens meanwhile."""
        self._state = EngineState.STOPPING if self._draining else state

    def _step_until_closing(self, scheduler: Scheduler, pipeline: Pipeline) -> None:
        while not self._closing:
            self._wake.clear()
            if not scheduler.is_idle:
                run_step(scheduler, pipeline, self.clock, self._emit)
            elif not self._closing:  # asked again, for `close` may have come before the clear
                self._wake.wait()

    def _emit(self, record: StepRecord, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, FinishedEvent):
                with self._door:
                    self._inside.pop(event.request_id, None)
        self._deliver(Stepped(record, events))

    def _take_all(self) -> list[FinishedEvent]:
        """Ends whatever is inside as failed and shuts the door."""
        with self._door:
            scheduler, self._scheduler = self._scheduler, None
            inside, self._inside = self._inside, {}
        return [self._fail(scheduler, request) for request in inside.values()]

    def _fail(self, scheduler: Scheduler | None, request: Request) -> FinishedEvent:
        now_s = self.clock()
        event = scheduler.finish(request.id, FinishReason.FAILED, now_s) if scheduler else None
        if event:
            return event
        # The crash came between the end of the request and its notice.
        timeline = Timeline(request.arrived_at_s, self._generation, ended_at_s=now_s)
        return FinishedEvent(request.id, FinishReason.FAILED, timeline)

    def _raise_if_hopeless(self, crash: str) -> None:
        self._crashes.append(self.clock())
        recent = [at_s for at_s in self._crashes if at_s > self.clock() - _CRASH_WINDOW_S]
        if len(recent) >= _MAX_CRASHES:
            raise RuntimeError(crash)

    def _close(self, executor: Executor) -> None:
        try:
            executor.close()
        except Exception:  # noqa: BLE001
            _log.exception("the executor did not close cleanly")
