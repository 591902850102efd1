"""The classic table: a few streams, one long prompt, one chunk size after another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from engine.core.config import SchedulerConfig
from engine.core.cost_model import Work
from engine.core.records import Outcome, RequestRecord
from engine.core.report import chunking_efficiency, prefill_overhead, ttft, worst_pause
from loadtests.errors import LoadTestError
from loadtests.run import run_load
from loadtests.traffic.schedule import Schedule, ScheduledRequest
from tuner.announce import Announcer
from tuner.errors import EngineError
from tuner.evaluation.live import LiveServer
from tuner.evaluation.sizing import Capacity
from tuner.reporting.terminal import in_seconds
from tuner.search_space import fixed_chunks, unchunked

DEFAULT_CHUNKS = (None, 2048, 1024, 512, 256)
SMALLEST_TOKENS = 32
# A smaller chunk that shortens the pause by less than this has met the floor of decode steps.
_STILL_FALLS = 0.9
_STREAM_PROMPT_TOKENS = 64
_LEAD_S = 0.5
_IDLE_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """What is sent.

    Attributes:
        chunks: None in it means chunking off.
        go_on: halve further after the last size while the pause falls.
        repeats: runs per size; the median TTFT and the worst pause are kept.
    """

    chunks: tuple[int | None, ...]
    go_on: bool
    prompt_tokens: int
    streams: int
    repeats: int
    seed: int


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One chunk size; None where a run gave no number.

    Attributes:
        chunk_tokens: None is chunking off.
        prefill_overhead: the prompt's prefill time ÷ the same prompt's unchunked with nobody else there, − 1.
        chunking_efficiency: that time and the decode steps between the chunks, ÷ the TTFT; 1.0 is the limit.
    """

    chunk_tokens: int | None
    long_ttft_s: float | None
    worst_pause_s: float | None
    prefill_overhead: float | None
    chunking_efficiency: float | None


class Sweep:
    """Runs the table on a live server.

    Args:
        base: every row's config differs from it in chunking only.
    """

    def __init__(
        self,
        server: LiveServer,
        base: SchedulerConfig,
        capacity: Capacity,
        plan: SweepPlan,
        announcer: Announcer,
    ) -> None:
        self._server = server
        self._base = base
        self._capacity = capacity
        self._plan = plan
        self._announcer = announcer

    def run(self) -> list[SweepRow]:
        """Every row, in order. Raises: EngineError."""
        self._announcer.doing("the prompt alone, unchunked")
        alone_s = self._alone()
        self._announcer.done("the prompt alone, unchunked", f"{alone_s:.2f} s of reading")
        rows: list[SweepRow] = []
        for chunk in self._sizes(rows):
            name = "chunking off" if chunk is None else f"chunks of {chunk} tokens"
            self._announcer.doing(name)
            rows.append(self._row(chunk, alone_s))
            self._announcer.done(name, _shown(rows[-1]))
        return rows

    def _sizes(self, rows: list[SweepRow]) -> Iterator[int | None]:
        """The planned sizes that cut the prompt at all; then half as many tokens while that helps."""
        smallest = self._plan.prompt_tokens
        for chunk in self._plan.chunks:
            if chunk is not None and chunk >= self._plan.prompt_tokens:
                self._announcer.warn(
                    f"{chunk} tokens skipped: the whole prompt has only {self._plan.prompt_tokens}"
                )
                continue
            smallest = chunk or smallest
            yield chunk
        while self._plan.go_on and smallest // 2 >= SMALLEST_TOKENS and _falls(rows):
            smallest = (
                1 << (smallest - 1).bit_length() - 1
                if smallest == self._plan.prompt_tokens
                else smallest // 2
            )
            yield smallest

    def _alone(self) -> float:
        """Prefill seconds of the prompt, unchunked, with nobody else there."""
        generation = self._put(unchunked(self._base), "sweep: alone")
        seconds = [
            prefill
            for record in self._play([self._long(0.0)], generation)
            if (prefill := _prefill_s(record)) is not None
        ]
        if not seconds:
            raise EngineError("the server gave no timings for the long prompt alone")
        return median(seconds)

    def _row(self, chunk: int | None, alone_s: float) -> SweepRow:
        config = unchunked(self._base) if chunk is None else fixed_chunks(self._base, chunk)
        generation = self._put(config, f"sweep: {chunk or 'whole'}")
        requests = [*self._streams(chunk), self._long(_LEAD_S + self._first_tokens_s())]
        records = self._play(requests, generation)
        long = [record for record in records if record.kind == "long"]
        ttfts = [value for record in long if (value := ttft(record)) is not None]
        reading = [value for record in long if (value := _prefill_s(record)) is not None]
        pauses = [pause.seconds for r in records if r.kind == "stream" and (pause := worst_pause(r))]
        return SweepRow(
            chunk_tokens=chunk,
            long_ttft_s=median(ttfts) if ttfts else None,
            worst_pause_s=max(pauses, default=None),
            prefill_overhead=prefill_overhead(median(reading), alone_s) if reading else None,
            chunking_efficiency=self._efficiency(chunk, alone_s, ttfts),
        )

    def _efficiency(self, chunk: int | None, alone_s: float, ttfts: list[float]) -> float | None:
        """Between two chunks every stream writes a token, in a step that the cost model says the time of."""
        if not ttfts:
            return None
        decode_s = (self._num_chunks(chunk) - 1) * self._base.decode_steps_per_chunk * self._step_s()
        return chunking_efficiency(alone_s, decode_s, median(ttfts))

    def _num_chunks(self, chunk: int | None) -> int:
        return 1 if chunk is None else -(-self._plan.prompt_tokens // chunk)

    def _put(self, config: SchedulerConfig, why: str) -> int:
        self._server.client.wait_idle(_IDLE_WITHIN_S)
        return self._server.setter.put(config, why)

    def _play(self, requests: list[ScheduledRequest], generation: int) -> list[RequestRecord]:
        schedule = Schedule(
            name="sweep", seed=self._plan.seed, requests=tuple(sorted(requests, key=lambda r: r.at_s)),
            duration_s=max(r.at_s for r in requests) + 0.5, grace_s=600.0,
            long_prompt_tokens=self._plan.prompt_tokens,
        )  # fmt: skip
        records: list[RequestRecord] = []
        for _ in range(self._plan.repeats):
            self._server.client.wait_idle(_IDLE_WITHIN_S)
            records += self._play_once(schedule, generation)
        return records

    def _play_once(self, schedule: Schedule, generation: int) -> tuple[RequestRecord, ...]:
        server = self._server
        try:
            result = run_load(schedule, server.target, book=server.book, expected_generation=generation)
        except LoadTestError as error:
            raise EngineError(str(error)) from error
        failed = [r for r in result.records if r.outcome is not Outcome.COMPLETED]
        if failed:
            raise EngineError(
                f"a request of the sweep was {failed[0].outcome}: {failed[0].error or ''}".rstrip(": ")
            )
        for reason in result.validity.reasons:
            self._announcer.warn(f"the load client was not exact: {reason}")
        return result.records

    def _streams(self, chunk: int | None) -> list[ScheduledRequest]:
        """Streams that outlast the long prompt: every chunk leaves time for one of their tokens."""
        num_chunks = self._num_chunks(chunk)
        before = int((_LEAD_S + 2 * self._first_tokens_s()) / max(self._step_s(), 1e-3))
        tokens = before + 2 * num_chunks + 16
        return [
            self._request(f"stream-{i}", "stream", _STREAM_PROMPT_TOKENS, tokens, 0.01 * i)
            for i in range(self._plan.streams)
        ]

    def _first_tokens_s(self) -> float:
        """Until every stream has begun."""
        return self._plan.streams * self._capacity.costs.prefill_seconds(_STREAM_PROMPT_TOKENS)

    def _step_s(self) -> float:
        rows = self._plan.streams
        return self._capacity.costs.seconds(
            Work(num_decodes=1, decode_rows=rows, decode_kv_tokens=128 * rows)
        )

    def _long(self, at_s: float) -> ScheduledRequest:
        return self._request("long", "long", self._plan.prompt_tokens, 2, at_s)

    def _request(self, name: str, kind: str, prompt: int, output: int, at_s: float) -> ScheduledRequest:
        seed = self._plan.seed * 7919 + sum(map(ord, name))
        return ScheduledRequest(
            id=name, kind=kind, at_s=at_s, prompt_tokens=prompt, max_tokens=output, prompt_seed=seed
        )


def _prefill_s(record: RequestRecord) -> float | None:
    if record.kind != "long" or record.timings is None:
        return None
    value = record.timings.get("prefill_s")
    return None if value is None else float(value)


def _falls(rows: list[SweepRow]) -> bool:
    """Whether the last halving still shortened the pause."""
    pauses = [row.worst_pause_s for row in rows if row.worst_pause_s is not None]
    return len(pauses) < 2 or pauses[-1] < _STILL_FALLS * pauses[-2]


def _shown(row: SweepRow) -> str:
    return f"{in_seconds(row.long_ttft_s)} at a worst pause of {in_seconds(row.worst_pause_s)}"
