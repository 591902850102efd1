"""A server in virtual time: the real scheduler and pipeline over a device made of a cost model."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf

from engine.core.admission import Refused
from engine.core.config import SchedulerConfig
from engine.core.cost_model import CostModel
from engine.core.events import Event, FinishedEvent, StepRecord, TokenEvent
from engine.core.executor import ModelInfo
from engine.core.plan import StepPlan
from engine.core.records import Outcome, RequestRecord, Tokens
from engine.core.request import Request
from engine.core.scheduler import run_step
from engine.sim.executor import SimExecutor, VirtualClock
from engine.sim.stretch import Stretch, StretchPipeline, StretchScheduler


@dataclass(frozen=True, slots=True)
class Wait:
    """A request that arrives `delay_s` after another one has ended or was refused."""

    after: str
    delay_s: float


@dataclass(slots=True)
class Step:
    """One step that was planned, and those that ended meanwhile."""

    plan: StepPlan
    ended: list[StepRecord]

    def plans(self) -> tuple[StepPlan]:
        return (self.plan,)

    def records(self) -> list[StepRecord]:
        return self.ended


@dataclass(slots=True)
class Simulation:
    """What a run came to.

    Attributes:
        records: one per arrival, in order of `arrived_at_s` as given.
        aborted: stopped at a pause beyond the limit; what had not ended by then says nothing.
        history: what was done, step by step or a stretch of steps at once; empty when it was not wanted.
    """

    records: list[RequestRecord] = field(default_factory=list)
    aborted: bool = False
    history: list[Step | Stretch] = field(default_factory=list)

    @property
    def plans(self) -> list[StepPlan]:
        """Every step's plan, in order."""
        return [plan for part in self.history for plan in part.plans()]

    @property
    def steps(self) -> list[StepRecord]:
        """Every step's record, in order."""
        return [record for part in self.history for record in part.records()]


def simulate(
    arrivals: Iterable[Request],
    config: SchedulerConfig,
    costs: CostModel,
    model: ModelInfo,
    *,
    noise: Callable[[], float] | None = None,
    abort_pause_s: float | None = None,
    watched: Container[str] | None = None,
    waits: Mapping[str, Wait] | None = None,
    retries: Mapping[str, int] | None = None,
    with_history: bool = True,
) -> Simulation:
    """Serves `arrivals` to their ends under `config`.

    Args:
        arrivals: requests with `arrived_at_s` on the virtual clock; a prompt may be a `range`.
        noise: factor for each step's predicted seconds.
        abort_pause_s: stop as soon as a stream has paused longer; what is inside is left unfinished.
        watched: ids of the requests whose pauses count for that; all when None.
        waits: by id, requests that arrive when another one among them has ended, and not when they say.
        retries: by id, how often a request that is refused comes again, when the refusal says.
        with_history: keep plans and step records.
    """
    run = _Run(arrivals, config, costs, model, noise, watched, waits or {}, retries or {}, with_history)
    return run.until_done(abort_pause_s)


class _Run:
    def __init__(
        self,
        arrivals: Iterable[Request],
        config: SchedulerConfig,
        costs: CostModel,
        model: ModelInfo,
        noise: Callable[[], float] | None,
        watched: Container[str] | None,
        waits: Mapping[str, Wait],
        retries: Mapping[str, int],
        with_history: bool,
    ) -> None:
        self._clock = VirtualClock()
        self._scheduler = StretchScheduler(model, config, costs)
        self._executor = SimExecutor(model, costs, self._clock, noise)
        self._pipeline = StretchPipeline(self._executor)
        self._requests = sorted(arrivals, key=_arrival)
        self._waits = waits
        self._waiting: dict[str, list[Request]] = {}
        for request in self._requests:
            if wait := waits.get(request.id):
                self._waiting.setdefault(wait.after, []).append(request)
        # By arrival; from `_next` on they are still to come.
        self._known = [request for request in self._requests if request.id not in waits]
        self._next = 0
        self._watched = {r.id for r in self._requests} if watched is None else watched
        self._tokens: dict[str, list[float]] = {r.id: [] for r in self._requests}
        self._ends: dict[str, tuple[Outcome, float, str | None]] = {}
        self._cached: dict[str, int] = {}
        self._worst_pause_s = 0.0
        self._retries = dict(retries)
        self._with_history = with_history
        self._ended: list[StepRecord] = []
        self._result = Simulation()

    def until_done(self, abort_pause_s: float | None) -> Simulation:
        limit_s = inf if abort_pause_s is None else abort_pause_s
        while self._worst_pause_s <= limit_s and not self._is_done():
            self._admit_arrived()
            if num_alike := self._scheduler.num_alike():
                self._repeat(num_alike, limit_s)
            else:
                self._step()
        self._result.aborted = self._worst_pause_s > limit_s
        # Reversed, because who comes again waits from the first time on.
        known = {request.id: request for request in reversed(self._known)}
        self._result.records = [self._record(known.get(r.id, r)) for r in self._requests]
        return self._result

    def _step(self) -> None:
        self._ended = []
        plan = run_step(self._scheduler, self._pipeline, self._clock, self._emit)
        self._note(Step(plan, self._ended))

    def _note(self, part: Step | Stretch) -> None:
        if self._with_history:
            self._result.history.append(part)

    def _repeat(self, num_alike: int, limit_s: float) -> None:
        """Steps like the latest one, as long as nobody arrives and no pause is beyond the limit."""
        rows = self._scheduler.rows
        arrives_at_s = self._known[self._next].arrived_at_s if self._next < len(self._known) else inf
        before_s, ends_at_s = self._clock(), []
        watched = any(row in self._watched for row in rows)
        for at_s in self._executor.repeat(self._scheduler.writing(), self._pipeline.launched):
            ends_at_s.append(at_s)
            if watched and at_s - before_s > self._worst_pause_s:
                self._worst_pause_s = at_s - before_s
            if len(ends_at_s) == num_alike or at_s >= arrives_at_s or self._worst_pause_s > limit_s:
                break
            before_s = at_s
        self._executor.deepen(rows, len(ends_at_s))
        stretch = self._scheduler.repeat(ends_at_s)
        self._pipeline.repeat(stretch)
        self._note(stretch)
        for row in rows:
            self._tokens[row] += ends_at_s

    def _is_done(self) -> bool:
        if not self._scheduler.is_idle:
            return False
        if self._next == len(self._known):
            return True
        self._clock.advance_to(self._known[self._next].arrived_at_s)
        return False

    def _admit_arrived(self) -> None:
        while self._next < len(self._known):
            request = self._known[self._next]
            if request.arrived_at_s > self._clock():
                return
            self._next += 1
            verdict = self._scheduler.submit(request)
            if isinstance(verdict, Refused):
                self._refuse(request, verdict)

    def _refuse(self, request: Request, refused: Refused) -> None:
        """The client comes again after a `Retry-After` of whole seconds, if it will and waiting can help."""
        left = self._retries.get(request.id, 0)
        if not left or refused.retry_after_s is None:
            self._end(request.id, Outcome.REFUSED, refused.code.value)
            return
        self._retries[request.id] = left - 1
        self._come(request, self._clock() + max(1, ceil(refused.retry_after_s)))

    def _end(self, request_id: str, outcome: Outcome, error: str | None = None) -> None:
        """Notes an end; whoever waited for it is now known to come."""
        self._ends[request_id] = (outcome, self._clock(), error)
        for request in self._waiting.pop(request_id, ()):
            at_s = self._clock() + self._waits[request.id].delay_s
            self._come(request, at_s)

    def _come(self, request: Request, at_s: float) -> None:
        insort(self._known, replace(request, arrived_at_s=at_s), lo=self._next, key=_arrival)

    def _emit(self, record: StepRecord, events: list[Event]) -> None:
        self._ended.append(record)
        for event in events:
            if isinstance(event, TokenEvent):
                self._take_token(event)
            else:
                self._take_end(event)

    def _take_token(self, event: TokenEvent) -> None:
        request_id, _, _, at_s = event
        tokens = self._tokens[request_id]
        if tokens and at_s - tokens[-1] > self._worst_pause_s and request_id in self._watched:
            self._worst_pause_s = at_s - tokens[-1]
        tokens.append(at_s)

    def _take_end(self, event: FinishedEvent) -> None:
        self._cached[event.request_id] = event.timeline.cached_tokens
        self._end(event.request_id, Outcome.COMPLETED)

    def _record(self, request: Request) -> RequestRecord:
        outcome, ended_at_s, error = self._ends.get(request.id) or self._unfinished(request)
        tokens = self._tokens[request.id]
        return RequestRecord(
            id=request.id,
            scheduled_at_s=request.arrived_at_s,
            sent_at_s=None if outcome is Outcome.NEVER_SENT else request.arrived_at_s,
            planned_prompt_tokens=request.num_prompt_tokens,
            prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            outcome=outcome,
            ended_at_s=ended_at_s,
            events=Tokens(tokens),
            output_tokens=len(tokens),
            cached_tokens=self._cached.get(request.id, 0),
            error=error,
        )

    def _unfinished(self, request: Request) -> tuple[Outcome, float, str | None]:
        """The end of a request that the run stopped before: inside, or not even arrived."""
        now_s = self._clock()
        still_waits = any(request in waiting for waiting in self._waiting.values())
        if still_waits or request.arrived_at_s > now_s:
            return Outcome.NEVER_SENT, request.arrived_at_s, None
        return Outcome.UNFINISHED, now_s, None


def _arrival(request: Request) -> float:
    return request.arrived_at_s
