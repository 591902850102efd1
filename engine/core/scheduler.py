"""The scheduler: what is inside, what the next step does, what became of it.

`plan` and `commit` are the two halves of a step; `run_step` puts the device between them. The same code
drives the server and the simulator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext

from engine.core import admission, layering
from engine.core.admission import Admitted, RefusalCode, Refused
from engine.core.config import SchedulerConfig
from engine.core.cost_model import UNFITTED, CostModel, Work
from engine.core.events import Event, FinishedEvent, StepRecord, TokenEvent
from engine.core.executor import ModelInfo
from engine.core.forecast import Forecast
from engine.core.inside import Inside
from engine.core.layering import Unread
from engine.core.occupancy import Occupancy
from engine.core.pace import Pace
from engine.core.pipeline import Pipeline, Settled
from engine.core.plan import PrefillChunk, Restore, StepPlan
from engine.core.policy import order_prompts, plan_prefill
from engine.core.prefix_cache import PrefixCache, cache_bytes
from engine.core.request import FinishReason, Request
from engine.core.row import Row
from engine.core.timeline import PauseCause, PauseKind, PauseLog, Timeline


class Scheduler:
    """Owns every request from its admission to its one `FinishedEvent`.

    Args:
        costs: what work is known to cost here; None when that is still to be learned (`calibrate`).
        lock: held inside every public method. A server passes a real one, so that other threads may
            submit and abort between the engine thread's plan and commit.
    """

    def __init__(
        self,
        model: ModelInfo,
        config: SchedulerConfig | None = None,
        costs: CostModel | None = None,
        generation: int = 1,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        self._model = model
        self._config = config or SchedulerConfig()
        self._pace = Pace(costs or UNFITTED, proven=costs is not None)
        self._forecast = Forecast(model, self._pace)
        self._prefixes = PrefixCache(model, cache_bytes(self._config, model))
        self._generation = generation
        self._lock = lock or nullcontext()
        self._inside = Inside(model)
        self._step = 0
        self._decodes_since_chunk = 0
        self._last_chunk_step = 0
        self._in_flight: deque[Work] = deque()
        self._settled_at_s = 0.0
        self._log = PauseLog()
        self._stopping = False

    # -- the door ------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Admitted | Refused:
        """Lets the request in, or says why not; a refused request leaves no trace inside."""
        row = Row(request, Timeline(request.arrived_at_s, self._generation))
        row.digests = self._prefixes.digest(request)
        with self._lock:
            if self._stopping:
                return Refused(RefusalCode.STOPPING, "the server is shutting down")
            row.num_expected = self._prefixes.expect(row, self._inside.rows)
            verdict = self._decide(row)
            if isinstance(verdict, Admitted):
                self._prefixes.admit(row, self._inside.rows)
                self._inside.admit(row)
            return verdict

    def finish(self, request_id: str, reason: FinishReason, now_s: float) -> FinishedEvent | None:
        """Ends a request from outside (its client left, a stop string matched).

        Its row is freed by the next plan. None when it is not inside, or no longer.
        """
        with self._lock:
            row = self._inside.find(request_id)
            return self._end(row, reason, now_s) if row else None

    def stop(self) -> None:
        """Admits nobody from now on; what is inside goes on to its end."""
        with self._lock:
            self._stopping = True

    # -- live settings -------------------------------------------------------------------------------

    def configure(self, config: SchedulerConfig, generation: int) -> None:
        """Replaces the config; takes hold at the next plan."""
        with self._lock:
            self._config, self._generation = config, generation
            self._prefixes.resize(cache_bytes(config, self._model))
            self._pace.doubt()

    def calibrate(self, costs: CostModel) -> None:
        """Replaces the cost model behind predictions and the paced policy."""
        with self._lock:
            self._pace.learn(costs)

    @property
    def is_idle(self) -> bool:
        """Nothing to plan and nothing to wait for."""
        with self._lock:
            return self._inside.is_empty and not (self._in_flight or self._prefixes.has_drops)

    @property
    def occupancy(self) -> Occupancy:
        with self._lock:
            inside = self._inside
            return Occupancy(
                num_running=len(inside.running),
                num_waiting=len(inside.waiting),
                waiting_prefill_tokens=sum(row.num_uncached for row in inside.waiting),
                kv_tokens=inside.promised_kv,
                kv_used_tokens=sum(row.depth for row in inside.running.values()),
                prefix_cache=self._prefixes.use,
            )

    # -- a step --------------------------------------------------------------------------------------

    def plan(self, now_s: float) -> StepPlan:
        """What the next step does. May be empty while launched work is still to be waited for."""
        with self._lock:
            self._step += 1
            release = self._inside.take_ended()
            started = self._inside.start(self._config)
            decode = tuple(row for row in self._inside.running.values() if row.may_decode)
            chunks = self._plan_chunks(decode, now_s)
            restores = self._begin(chunks)
            self._note_idle(now_s, bool(decode))
            self._launch(decode, chunks, now_s)
            keeps = self._prefixes.keep([self._inside.running[chunk.request_id] for chunk in chunks])
            return StepPlan(
                step=self._step,
                generation=self._generation,
                release=release,
                start=tuple(row.request for row in started),
                restore=restores,
                drop=self._prefixes.take_drops(),
                decode=tuple(row.request.id for row in decode),
                prefill=chunks,
                keep=keeps,
            )

    def commit(self, settled: Settled, now_s: float) -> tuple[StepRecord, list[Event]]:
        """Takes in one step that ended at `now_s`: its record, and what its tokens brought about."""
        with self._lock:
            work = self._in_flight.popleft()
            duration_s, self._settled_at_s = now_s - self._settled_at_s, now_s
            self._log.note(now_s, _cause(settled, work, duration_s))
            self._pace.note(work, duration_s)
            events: list[Event] = []
            for request_id, token in settled.tokens_by_request():
                if row := self._inside.running.get(request_id):
                    self._take_token(row, token, settled.step, now_s, events)
            record = StepRecord(
                settled.step, settled.generation, now_s, duration_s, work, settled.prefill,
                len(self._inside.running), len(self._inside.waiting),
            )  # fmt: skip
            return record, events

    # -- inside --------------------------------------------------------------------------------------

    def _decide(self, row: Row) -> Admitted | Refused:
        starting = self._inside.starting(self._config)
        running = [*self._inside.running.values(), *starting]
        waiting = self._inside.waiting[len(starting) :]
        load, own_s = self._forecast.load(row, running, waiting, self._config)
        return admission.decide(row.request, load, own_s, self._config, self._model, row.num_expected)

    def _plan_chunks(self, decode: tuple[Row, ...], now_s: float) -> tuple[PrefillChunk, ...]:
        rows = sorted((r for r in self._inside.running.values() if r.num_unread), key=Row.queue_key)
        too_soon = decode and self._decodes_since_chunk + 1 < self._config.decode_steps_per_chunk
        if not rows or too_soon:
            return ()
        unread = self._without_followers([self._unread(row, now_s) for row in rows])
        shared = layering.shares_pass(self._model)
        decoding = Work.of_decode(row.depth for row in decode).beside_chunks(shared)
        chunks = plan_prefill(unread, decoding, self._config, self._pace, self._model)
        return tuple(self._prefixes.cut(self._inside.running[chunk.request_id], chunk) for chunk in chunks)

    def _unread(self, row: Row, now_s: float) -> Unread:
        hit = None if row.begun else self._prefixes.find(row)
        start = hit.num_tokens if hit else row.num_prefilled
        num_tokens, waited_s = row.request.num_prompt_tokens - start, now_s - row.request.arrived_at_s
        num_undivided = self._prefixes.undivided_tokens(row, start)
        return Unread(row.request.id, start, num_tokens, waited_s, row.layered, num_undivided)

    def _without_followers(self, unread: list[Unread]) -> list[Unread]:
        """Leaves out prompts that gain by waiting for a checkpoint of another one."""
        rows = [self._inside.running[prompt.request_id] for prompt in unread]
        if all(row.digests is None for row in rows):
            return unread
        ordered = order_prompts(unread, self._config.prefill_order, self._pace.costs)
        rows = [self._inside.running[prompt.request_id] for prompt in ordered]
        following = self._prefixes.followers(rows, self._last_chunk_step)
        return [prompt for prompt in unread if prompt.request_id not in following]

    def _begin(self, chunks: Iterable[PrefillChunk]) -> tuple[Restore, ...]:
        """Settles what the prompts that are read from here on start from."""
        rows = (self._inside.running[chunk.request_id] for chunk in chunks)
        restores = (self._prefixes.begin(row) for row in rows if not row.begun)
        return tuple(restore for restore in restores if restore)

    def _launch(self, decode: tuple[Row, ...], chunks: tuple[PrefillChunk, ...], now_s: float) -> None:
        """Counts the plan's work as launched."""
        if decode or chunks:
            self._in_flight.append(Work.of_step((row.depth for row in decode), chunks, self._model.one_pass))
        for row in decode:
            row.num_sampled += 1
        if not chunks:
            self._decodes_since_chunk += 1
            return
        self._decodes_since_chunk = 0
        self._last_chunk_step = self._step
        for chunk in chunks:
            self._inside.running[chunk.request_id].take_chunk(chunk, self._step, now_s)

    def _note_idle(self, now_s: float, streaming: bool) -> None:
        """The device had nothing to do since the last wait: the host's time, if a stream waited for it."""
        if self._in_flight:
            return
        if streaming:
            self._log.note(now_s, PauseCause(self._step, PauseKind.HOST, now_s - self._settled_at_s))
        self._settled_at_s = now_s

    def _take_token(self, row: Row, token: int, step: int, now_s: float, events: list[Event]) -> None:
        request, timeline = row.request, row.timeline
        stops = token in request.stop_tokens and timeline.num_output_tokens >= request.min_tokens
        if not stops:
            timeline.on_token(now_s, self._log)
            events.append(TokenEvent(request.id, token, step, now_s))
        if stops or timeline.num_output_tokens == request.max_tokens:
            events.append(self._end(row, FinishReason.STOP if stops else FinishReason.LENGTH, now_s))

    def _end(self, row: Row, reason: FinishReason, now_s: float) -> FinishedEvent:
        self._inside.end(row)
        row.timeline.ended_at_s = now_s
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._forecast.note_answer(row.timeline.num_output_tokens)
        return FinishedEvent(row.request.id, reason, row.timeline)


def _cause(settled: Settled, work: Work, duration_s: float) -> PauseCause:
    kind = PauseKind.PREFILL if settled.prefill else PauseKind.DECODE
    ids = tuple(chunk.request_id for chunk in settled.prefill)
    return PauseCause(settled.step, kind, duration_s, ids, work.prefill_tokens, work.decode_rows)


def run_step(
    scheduler: Scheduler,
    pipeline: Pipeline,
    clock: Callable[[], float],
    emit: Callable[[StepRecord, list[Event]], None],
) -> StepPlan:
    """One step: plan, execute, commit. `emit` is called as each step ends, so tokens leave at once."""
    plan = scheduler.plan(clock())
    for settled in pipeline.execute(plan):
        emit(*scheduler.commit(settled, clock()))
    return plan
