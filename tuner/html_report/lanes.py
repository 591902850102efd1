"""A run as lanes: one a request, with its tokens, its prompt's chunks, and what its pauses were spent on."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, takewhile

from engine.core.report import chunking_efficiency, prefill_overhead
from tuner.store.models import RequestRow
from tuner.timeline import Chunk, RunTimeline

MOST_LANES = 28
_AROUND_S = 1.0
_MARGIN_S = 0.2
# Of a prompt's tokens, that others may read beside it and it still counts as alone.
_HARDLY = 0.05
_EPSILON_S = 0.001  # times are kept to the millisecond


@dataclass(frozen=True, slots=True)
class LongPause:
    """A gap beyond the SLO. Seconds on the run's clock.

    Attributes:
        whose: the prompt that was read meanwhile, by its lane's label; several when one step read several.
        num_tokens: of it that were read in the step which took most of the gap; 0 when none was.
        cause: in words.
        is_open: nothing came any more: the gap is a lower bound.
    """

    from_s: float
    to_s: float
    whose: str
    num_tokens: int
    cause: str
    is_open: bool = False

    @property
    def seconds(self) -> float:
        return self.to_s - self.from_s


@dataclass(frozen=True, slots=True)
class Lane:
    """One request.

    Attributes:
        outcome: how it ended.
        tokens_s: when its content came; empty when nothing did, or nothing was kept.
    """

    request_id: str
    label: str
    prompt_tokens: int
    outcome: str
    scheduled_at_s: float
    ended_at_s: float
    tokens_s: tuple[float, ...]
    chunks: tuple[Chunk, ...]
    pauses: tuple[LongPause, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """A live run as it is drawn, all of it.

    Attributes:
        name: of its config.
        seed: of its traffic: runs of one seed met the same requests.
        chunks: of every prompt, those of nobody we know included.
    """

    number: int
    name: str
    seed: int
    lanes: tuple[Lane, ...]
    chunks: tuple[Chunk, ...]
    requests: Mapping[str, RequestRow]

    @property
    def worst(self) -> tuple[Lane, LongPause] | None:
        """The longest of the long pauses; None when none is beyond the SLO."""
        found = ((lane, pause) for lane in self.lanes for pause in lane.pauses)
        return max(found, key=lambda pair: pair[1].seconds, default=None)


def run_of(
    number: int, name: str, seed: int, requests: Sequence[RequestRow], timeline: RunTimeline, slo_s: float
) -> Run:
    """A run's lanes in order of arrival; those of the warm-up are left out."""
    labels = _labels(requests)
    measured = [row for row in requests if row.measured]
    reading = _Reading(timeline.chunks, labels)
    lanes = tuple(
        _lane(row, labels[row.request_id], timeline.events.get(row.request_id, ()), reading, slo_s)
        for row in measured
    )
    return Run(number, name, seed, lanes, timeline.chunks, {row.request_id: row for row in measured})


def _labels(requests: Iterable[RequestRow]) -> dict[str, str]:
    """Kind and a number within it: two runs of the same traffic call the same request the same."""
    counts: dict[str, int] = {}
    labels = {}
    for row in sorted(requests, key=lambda row: (row.scheduled_at_s, row.request_id)):
        kind = (row.kind or "request").replace("_", " ")
        counts[kind] = counts.get(kind, 0) + 1
        labels[row.request_id] = f"{kind} {counts[kind]}"
    return labels


def _lane(row: RequestRow, label: str, tokens: tuple[float, ...], reading: _Reading, slo_s: float) -> Lane:
    gaps = [gap for gap in pairwise(tokens) if gap[1] - gap[0] > slo_s + _EPSILON_S]
    pauses = [reading.explain(from_s, to_s) for from_s, to_s in gaps]
    if row.worst_pause_open and tokens and (row.worst_pause_s or 0.0) > slo_s:
        pauses.append(dataclasses.replace(reading.explain(tokens[-1], row.ended_at_s), is_open=True))
    return Lane(
        request_id=row.request_id,
        label=label,
        prompt_tokens=row.prompt_tokens or 0,
        outcome=row.outcome,
        scheduled_at_s=row.scheduled_at_s,
        ended_at_s=row.ended_at_s,
        tokens_s=tokens,
        chunks=tuple(reading.of(row.request_id)),
        pauses=tuple(pauses),
    )


class _Reading:
    """What was read when, by step and by request."""

    def __init__(self, chunks: Sequence[Chunk], labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._steps = [
            list(step) for _, step in groupby(chunks, key=lambda chunk: (chunk.from_s, chunk.to_s))
        ]
        self._ends_s = [step[0].to_s for step in self._steps]
        self._of: dict[str | None, list[Chunk]] = {}
        for chunk in chunks:
            self._of.setdefault(chunk.request_id, []).append(chunk)

    def of(self, request_id: str) -> list[Chunk]:
        """The chunks of one prompt."""
        return self._of.get(request_id, [])

    def explain(self, from_s: float, to_s: float) -> LongPause:
        """What a gap was spent on: the step with a chunk in it that covers most of it."""
        if not self._steps:
            return LongPause(from_s, to_s, "", 0, "the engine gave no step records")
        step = max(self._within(from_s, to_s), key=lambda step: _overlap(step[0], from_s, to_s), default=None)
        if step is None or _overlap(step[0], from_s, to_s) < (to_s - from_s) / 2:
            return LongPause(from_s, to_s, "", 0, "no prompt was being read: decoding, or the host")
        owners = [(self._labels.get(chunk.request_id or "", "another prompt"), chunk) for chunk in step]
        cause = " and ".join(f"{chunk.num_tokens:,} tokens of {whose}" for whose, chunk in owners)
        whose = " + ".join(name for name, _ in owners)
        return LongPause(from_s, to_s, whose, sum(c.num_tokens for _, c in owners), f"{cause} were read")

    def _within(self, from_s: float, to_s: float) -> Iterator[list[Chunk]]:
        """Steps that end after `from_s` and begin before `to_s`."""
        first = bisect_right(self._ends_s, from_s)
        after = (self._steps[n] for n in range(first, len(self._steps)))
        return takewhile(lambda step: step[0].from_s < to_s, after)


def _overlap(chunk: Chunk, from_s: float, to_s: float) -> float:
    return max(0.0, min(to_s, chunk.to_s) - max(from_s, chunk.from_s))


# -- what of two runs is drawn -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """What both pictures show: the same requests over the same seconds.

    Attributes:
        shown: request ids, in order of arrival.
        num_requests: of the run; more than are shown when they do not fit.
    """

    shown: tuple[str, ...]
    from_s: float
    to_s: float
    num_requests: int


def view_of(before: Run, after: Run | None) -> View:
    """Everything when it fits; else the time around the worst pause before, and the requests of that time
    which paused longest, with the prompts that were to blame.
    """
    runs = [before, after] if after else [before]
    if len(before.lanes) <= MOST_LANES:
        everyone = tuple(lane.request_id for lane in before.lanes)
        first = min((lane.scheduled_at_s for lane in before.lanes), default=0.0)
        last = max((lane.ended_at_s for run in runs for lane in run.lanes), default=1.0)
        return View(everyone, max(0.0, first - _MARGIN_S), last + _MARGIN_S, len(everyone))
    from_s, to_s = _telling(before, after)
    alive = [lane for lane in before.lanes if lane.scheduled_at_s < to_s and lane.ended_at_s > from_s]
    worst = sorted(alive, key=lambda lane: (not lane.chunks, -_longest(lane)))[: MOST_LANES // 4]
    worst += sorted((lane for lane in alive if lane not in worst), key=lambda lane: -_longest(lane))
    chosen = {lane.request_id for lane in worst[:MOST_LANES]}
    shown = tuple(lane.request_id for lane in before.lanes if lane.request_id in chosen)
    return View(shown, from_s, to_s, len(before.lanes))


def _telling(before: Run, after: Run | None) -> tuple[float, float]:
    """From the arrival of the prompt behind the worst pause to its first token in both runs."""
    worst = before.worst
    if worst is None:
        first = before.lanes[0].scheduled_at_s
        return first, first + 30.0
    lane, pause = worst
    culprit = next((other for other in before.lanes if other.label == pause.whose), lane)
    starts = [culprit.scheduled_at_s, pause.from_s]
    ends = [pause.to_s]
    for run in (before, after) if after else (before,):
        ends += [
            other.tokens_s[0]
            for other in run.lanes
            if other.request_id == culprit.request_id and other.tokens_s
        ]
    return max(0.0, min(starts) - _AROUND_S), max(ends) + _AROUND_S


def _longest(lane: Lane) -> float:
    return max((later - earlier for earlier, later in pairwise(lane.tokens_s)), default=0.0)


# -- the long prompts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LongPrompt:
    """How a long prompt fared in one run; None where that cannot be said.

    Attributes:
        alone: hardly anything of other prompts was read between its arrival and its last chunk.
        overhead, efficiency: `prefill_overhead` and `chunking_efficiency`; of a prompt read alone only.
    """

    label: str
    prompt_tokens: int
    ttft_s: float | None
    num_chunks: int
    alone: bool
    overhead: float | None
    efficiency: float | None


def long_prompts(run: Run, num_long: int, alone_s: Callable[[int], float], step_s: float) -> list[LongPrompt]:
    """The run's long prompts, in order of arrival.

    Args:
        num_long: how many there were: those with the most tokens that no cache held.
        alone_s: seconds of reading so many tokens in one pass with nobody there.
        step_s: seconds of a decode step of the streams.
    """
    rows = run.requests
    new = {lane: lane.prompt_tokens - rows[lane.request_id].cached_tokens for lane in run.lanes}
    longest = sorted(run.lanes, key=lambda lane: -new[lane])[:num_long]
    return [
        _long_prompt(run, lane, rows[lane.request_id], alone_s(new[lane]), step_s)
        for lane in run.lanes
        if lane in longest
    ]


def _long_prompt(run: Run, lane: Lane, row: RequestRow, alone_s: float, step_s: float) -> LongPrompt:
    prefill_s, ttft_s = row.timings.get("prefill_s"), row.ttft_s
    num_chunks = len({chunk.to_s for chunk in lane.chunks})
    alone = num_chunks > 0 and not _others_read(run, lane)
    overhead = efficiency = None
    if alone and alone_s > 0 and prefill_s and ttft_s:
        overhead = prefill_overhead(prefill_s, alone_s)
        efficiency = chunking_efficiency(alone_s, (num_chunks - 1) * step_s, ttft_s)
    return LongPrompt(lane.label, lane.prompt_tokens, ttft_s, num_chunks, alone, overhead, efficiency)


def _others_read(run: Run, lane: Lane) -> bool:
    """Whether others' tokens that were read meanwhile weigh against its own."""
    from_s, to_s = lane.scheduled_at_s + _EPSILON_S, lane.chunks[-1].to_s - _EPSILON_S
    others = (chunk for chunk in run.chunks if chunk.request_id != lane.request_id)
    meanwhile = sum(chunk.num_tokens for chunk in others if chunk.to_s > from_s and chunk.from_s < to_s)
    return meanwhile > _HARDLY * lane.prompt_tokens
