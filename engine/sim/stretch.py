"""Steps that do the same work, one after the other, taken at once: with the very results of stepping.

Most steps of a server do what the one before did: the same rows write a token each, while nobody comes, ends
or reads. What the scheduler and the pipeline would decide so many times over is decided once; only the
instants are worked out step by step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from engine.core.config import SchedulerConfig
from engine.core.cost_model import CostModel, Work
from engine.core.events import StepRecord
from engine.core.executor import ModelInfo
from engine.core.pipeline import Pipeline
from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler
from engine.core.timeline import PauseCause, PauseKind, Timeline
from engine.sim.executor import Ticket


@dataclass(frozen=True, slots=True)
class Stretch:
    """So many steps alike, as plans and records of them can be made from.

    Attributes:
        plan: of the first of them, which may also free rows; the others only write.
        settled: the step that ended first; the one before `plan.step` where the host runs ahead.
        since_s: the end of the step before that.
        ends_at_s: one per step, ascending.
        work: of the step that ended first; each later one finds one token more in every row.
    """

    plan: StepPlan
    settled: int
    since_s: float
    ends_at_s: Sequence[float]
    work: Work
    num_running: int
    num_waiting: int

    def plans(self) -> Iterator[StepPlan]:
        yield self.plan
        later = range(1, len(self.ends_at_s))
        yield from (replace(self.plan, release=(), step=self.plan.step + i) for i in later)

    def records(self) -> Iterator[StepRecord]:
        for i, (since_s, ended_at_s) in enumerate(pairwise((self.since_s, *self.ends_at_s))):
            yield StepRecord(
                self.settled + i, self.plan.generation, ended_at_s, ended_at_s - since_s,
                one_deeper(self.work, i), (), self.num_running, self.num_waiting,
            )  # fmt: skip


def one_deeper(work: Work, times: int = 1) -> Work:
    """The same rows after so many more tokens in each."""
    kv_tokens = work.decode_kv_tokens + times * work.decode_rows
    return Work(num_decodes=work.num_decodes, decode_rows=work.decode_rows, decode_kv_tokens=kv_tokens)


class StretchScheduler(Scheduler):
    """The scheduler, which also knows how long it would go on doing the same. It is as a live one is that was
    just given its config: it knows what work costs and has read long prompts, but trusts predictions only
    when a few of them have come true.
    """

    def __init__(self, model: ModelInfo, config: SchedulerConfig, costs: CostModel) -> None:
        super().__init__(model, config)
        self.calibrate(costs)
        self._pace.trust_sizes()

    def num_alike(self) -> int:
        """How many of the next steps only write, to the same rows, unless somebody comes or leaves: all that
        is running does, and has since the latest step.
        """
        rows = self._inside.running.values()
        if self._in_flight and self._in_flight[0].num_chunks:
            return 0
        if self._model.runs_ahead and not self._in_flight:  # the next is launched, but nothing ends
            return 0
        if not rows or self._prefixes.has_drops or self._inside.starting(self._config):
            return 0
        settled_at_s, least = self._settled_at_s, 1 << 62
        for row in rows:
            timeline = row.timeline
            if timeline.last_token_at_s != settled_at_s:  # reads, or has written nothing that was sent yet
                return 0
            written = max(row.num_sampled, timeline.num_output_tokens + 1)
            least = min(least, row.request.max_tokens - written)
        return least

    @property
    def rows(self) -> tuple[str, ...]:
        """Ids of what is running."""
        return tuple(self._inside.running)

    def writing(self) -> Work:
        """What the next of those steps does."""
        return Work.of_decode(row.depth for row in self._inside.running.values())

    def repeat(self, ends_at_s: Sequence[float]) -> Stretch:
        """Takes in `num_alike` of those steps, or fewer: each was planned, and one ended at each instant."""
        work = self._in_flight[0] if self._in_flight else self.writing()
        release = self._inside.take_ended()
        first = StepPlan(
            step=self._step + 1, generation=self._generation, release=release, decode=self.rows
        )  # fmt: skip
        stretch = Stretch(
            first, first.step - len(self._in_flight), self._settled_at_s, ends_at_s, work,
            len(self._inside.running), len(self._inside.waiting),
        )  # fmt: skip
        self._write(stretch)
        self._step += len(ends_at_s)
        self._decodes_since_chunk += len(ends_at_s)
        self._settled_at_s = ends_at_s[-1]
        if self._in_flight:
            self._in_flight[0] = one_deeper(work, len(ends_at_s))
        return stretch

    def _write(self, stretch: Stretch) -> None:
        """What the tokens of all these steps bring about."""
        gaps = [later - earlier for earlier, later in pairwise((stretch.since_s, *stretch.ends_at_s))]
        longest_s = max(gaps)
        step = stretch.settled + gaps.index(longest_s)
        cause = PauseCause(step, PauseKind.DECODE, longest_s, decode_rows=stretch.num_running)
        for row in self._inside.running.values():
            row.num_sampled += len(gaps)
            _write(row.timeline, stretch.ends_at_s, longest_s, cause)


def _write(timeline: Timeline, ends_at_s: Sequence[float], longest_s: float, cause: PauseCause) -> None:
    timeline.num_output_tokens += len(ends_at_s)
    timeline.last_token_at_s = ends_at_s[-1]
    if timeline.worst_pause_s is None or longest_s > timeline.worst_pause_s:
        timeline.worst_pause_s, timeline.worst_pause_cause = longest_s, cause


class StretchPipeline(Pipeline):
    """The pipeline, whose launched step may turn into a later one that does the same."""

    @property
    def launched(self) -> Ticket | None:
        """The ticket of the step that is launched and not waited for."""
        return self._in_flight[0][1] if self._in_flight else None

    def repeat(self, stretch: Stretch) -> None:
        """The stretch's steps were launched, each when the one before the one before it had been waited for;
        the launched one's ticket, if there is one, is the last one's now.
        """
        for request_id in stretch.plan.release:
            self._executor.release(request_id)
        if self._in_flight:
            plan, ticket = self._in_flight[0]
            step = plan.step + len(stretch.ends_at_s)
            self._in_flight[0] = StepPlan(step=step, generation=plan.generation, decode=plan.decode), ticket
