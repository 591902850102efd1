"""The numbers of a request and of a trial, computed from what a client saw.

Percentiles are nearest-rank on raw samples; repeats are pooled, never averaged. A maximum grows with
the number of samples: compare two trials only on the same request set.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.quantiles import nearest_rank, wilson_interval
from engine.core.records import LOST, Outcome, RequestRecord, Tokens
from engine.core.slo import Slo

_SERVED = (Outcome.COMPLETED, Outcome.CANCELLED)


@dataclass(frozen=True, slots=True)
class Pause:
    """A stream's gap between two content events.

    Attributes:
        at_s: when it ended (for an open one: when watching ended), on the run's clock.
        event: index in the record's events of the event that ended it; None when it never ended, so
            that `seconds` is a lower bound.
    """

    request_id: str
    at_s: float
    seconds: float
    event: int | None

    @property
    def is_bound(self) -> bool:
        return self.event is None


def ttft(record: RequestRecord) -> float | None:
    """Seconds from schedule to first content, waits and retries included; None without content."""
    return record.events[0].at_s - record.scheduled_at_s if record.events else None


def ttft_wire(record: RequestRecord) -> float | None:
    """Seconds from the write of the attempt that was answered to its first content."""
    sent = record.sent_at_s if record.resent_at_s is None else record.resent_at_s
    return record.events[0].at_s - sent if record.events and sent is not None else None


def dispatch_lag(record: RequestRecord) -> float | None:
    """Seconds the client wrote the request late; None when it never did."""
    return None if record.sent_at_s is None else record.sent_at_s - record.scheduled_at_s


def pauses(record: RequestRecord) -> tuple[Pause, ...]:
    """Every gap between content events, and the open gap of a stream that did not finish."""
    return tuple(_pause(record, index, seconds) for index, seconds in enumerate(_gaps(record), start=1))


def _gaps(record: RequestRecord) -> list[float]:
    """The seconds of `pauses`: an hour of traffic has millions, and few are looked at closely."""
    instants = record.events.at_s if isinstance(record.events, Tokens) else [e.at_s for e in record.events]
    gaps = [later - earlier for earlier, later in itertools.pairwise(instants)]
    if instants and _is_cut(record):
        gaps.append(max(0.0, record.ended_at_s - instants[-1]))
    return gaps


def _pause(record: RequestRecord, index: int, seconds: float) -> Pause:
    if index == len(record.events):
        return Pause(record.id, record.ended_at_s, seconds, None)
    return Pause(record.id, record.events[index].at_s, seconds, index)


def _is_cut(record: RequestRecord) -> bool:
    """More content was due when the stream ended."""
    return record.outcome is not Outcome.COMPLETED and record.output_tokens < record.max_tokens


def worst_pause(record: RequestRecord) -> Pause | None:
    """The longest gap; None (not zero) when the stream has none."""
    gaps = _gaps(record)
    return _pause(record, gaps.index(max(gaps)) + 1, max(gaps)) if gaps else None


def itl_samples(record: RequestRecord) -> list[tuple[float, int]]:
    """(seconds per token, tokens) of every event after the first: inter-token latency with weights."""
    closed = [pause for pause in pauses(record) if pause.event is not None]
    tokens = [event.num_tokens for event in record.events[1:]]
    return [(pause.seconds / n, n) for pause, n in zip(closed, tokens, strict=True) if n > 0]


def tpot(record: RequestRecord) -> float | None:
    """Seconds per output token after the first event; None when there are none."""
    if not record.events:
        return None
    tokens = record.output_tokens - record.events[0].num_tokens
    return (record.events[-1].at_s - record.events[0].at_s) / tokens if tokens > 0 else None


def prefill_overhead(prefill_s: float, alone_s: float) -> float:
    """What chunking and company cost a prompt's reading: 0.13 is 13 % longer.

    Args:
        prefill_s: from the start of reading to the first token.
        alone_s: the same of the same prompt, unchunked, with nobody else there; above 0.
    """
    return prefill_s / alone_s - 1.0


def chunking_efficiency(alone_s: float, decode_s: float, ttft_s: float) -> float:
    """The share of a chunked prompt's TTFT that had to be: 1.0 is the limit.

    A server that writes tokens in the same pass as it reads a chunk needs less for both than for one after
    the other, and so may pass it.

    Args:
        alone_s: prefill time of the same prompt, unchunked, with nobody else there.
        decode_s: of the decode steps that had to run meanwhile, each by itself.
        ttft_s: as measured; above 0.
    """
    return (alone_s + decode_s) / ttft_s


def is_long(record: RequestRecord, long_prompt_tokens: int) -> bool:
    """Whether the prompt, less what a cache already held, counts as long."""
    prompt = record.planned_prompt_tokens if record.prompt_tokens is None else record.prompt_tokens
    return prompt - record.cached_tokens >= long_prompt_tokens


def scored_ttft(record: RequestRecord) -> float:
    """TTFT as a trial is scored by: +inf when the request was refused, failed or never sent, and at
    least the time it was watched when no content came before watching ended.
    """
    if record.outcome in LOST:
        return math.inf
    value = ttft(record)
    return record.ended_at_s - record.scheduled_at_s if value is None else value


def meets(record: RequestRecord, slo: Slo, long_prompt_tokens: int) -> bool:
    """Whether the request succeeded within its TTFT target and the pause limit."""
    if record.outcome not in _SERVED or not record.events:
        return False
    target = slo.ttft_long_s if is_long(record, long_prompt_tokens) else slo.ttft_short_s
    pause = worst_pause(record)
    in_time = target is None or scored_ttft(record) <= target
    return in_time and (pause is None or pause.seconds <= slo.pause_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSummary:
    """A trial's numbers over the requests of the measured window, all repeats pooled.

    A percentile is always given, whatever n: it is what a search compares. Print it as a percentile only
    when `supported(q, n)`. +inf means that so many requests were refused, failed or never sent.

    Attributes:
        counts: requests by outcome; every outcome is present.
        worst_pause_s: None when no stream had two content events.
        worst_pause_at_s: when that pause ended, on its run's clock.
        worst_pause_is_bound: the stream was cut or still running, so the pause is at least this long.
        num_streams: requests that have a worst pause: the n of `pause_p99_s`.
        pause_rate_per_min: pauses over the SLO per minute of streaming; None when nothing streamed.
        long_ttft_n, short_ttft_n: requests scheduled of either kind.
        long_ttft_is_bound: a long request without a first token was still watched at the end.
        attainment_low, attainment_high: its 95 % interval (Wilson).
    """

    num_runs: int
    num_scheduled: int
    counts: dict[str, int]
    slo_pause_s: float
    worst_pause_s: float | None
    worst_pause_request: str | None
    worst_pause_at_s: float | None
    worst_pause_is_bound: bool
    pause_p99_s: float | None
    num_streams: int
    pause_rate_per_min: float | None
    long_ttft_p50_s: float | None
    long_ttft_p95_s: float | None
    long_ttft_n: int
    long_ttft_is_bound: bool
    short_ttft_p50_s: float | None
    short_ttft_p95_s: float | None
    short_ttft_n: int
    attainment: float
    attainment_low: float
    attainment_high: float
    shed_rate: float
    output_tokens_per_s: float | None

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values. JSON has no infinity: such a field is null and named in `unbounded`."""
        values = dataclasses.asdict(self)
        unbounded = [name for name, value in values.items() if isinstance(value, float) and math.isinf(value)]
        return values | dict.fromkeys(unbounded) | {"unbounded": unbounded}


def summarise(records: Iterable[RequestRecord], slo: Slo, *, long_prompt_tokens: int) -> TrialSummary:
    """The numbers of one run. Requests of the warm-up (`measured` false) are left out."""
    return summarise_runs([list(records)], slo, long_prompt_tokens=long_prompt_tokens)


def summarise_runs(
    runs: Sequence[Sequence[RequestRecord]], slo: Slo, *, long_prompt_tokens: int
) -> TrialSummary:
    """The numbers of repeated runs, raw samples pooled; each run has its own clock."""
    measured = [[record for record in run if record.measured] for run in runs]
    records = [record for run in measured for record in run]
    long = [record for record in records if is_long(record, long_prompt_tokens)]
    short = [record for record in records if not is_long(record, long_prompt_tokens)]
    counts = Counter(record.outcome for record in records)
    met = sum(meets(record, slo, long_prompt_tokens) for record in records)
    low, high = wilson_interval(met, len(records))
    return TrialSummary(
        num_runs=len(runs),
        num_scheduled=len(records),
        counts={outcome.value: counts[outcome] for outcome in Outcome},
        slo_pause_s=slo.pause_s,
        **_pause_numbers(records, slo.pause_s),
        **_ttft_numbers("long", long),
        long_ttft_is_bound=any(_is_open(record) for record in long),
        **_ttft_numbers("short", short),
        attainment=met / len(records) if records else 0.0,
        attainment_low=low,
        attainment_high=high,
        shed_rate=counts[Outcome.REFUSED] / len(records) if records else 0.0,
        output_tokens_per_s=_throughput(measured),
    )


def _ttft_numbers(kind: str, records: Sequence[RequestRecord]) -> dict[str, Any]:
    samples = [scored_ttft(record) for record in records]
    return {
        f"{kind}_ttft_p50_s": nearest_rank(samples, 0.50),
        f"{kind}_ttft_p95_s": nearest_rank(samples, 0.95),
        f"{kind}_ttft_n": len(samples),
    }


def _is_open(record: RequestRecord) -> bool:
    return not record.events and record.outcome in (Outcome.UNFINISHED, Outcome.CANCELLED)


def _pause_numbers(records: Sequence[RequestRecord], limit_s: float) -> dict[str, Any]:
    worst = [pause for record in records if (pause := worst_pause(record)) is not None]
    decisive = max(worst, key=lambda pause: pause.seconds, default=None)
    return {
        "worst_pause_s": decisive.seconds if decisive else None,
        "worst_pause_request": decisive.request_id if decisive else None,
        "worst_pause_at_s": decisive.at_s if decisive else None,
        "worst_pause_is_bound": decisive is not None and decisive.is_bound,
        "pause_p99_s": nearest_rank([pause.seconds for pause in worst], 0.99),
        "num_streams": len(worst),
        "pause_rate_per_min": _pause_rate(records, limit_s),
    }


def _pause_rate(records: Sequence[RequestRecord], limit_s: float) -> float | None:
    gaps = [gap for record in records for gap in _gaps(record)]
    minutes = math.fsum(gaps) / 60  # a stream's gaps add up to the time it streamed
    return sum(gap > limit_s for gap in gaps) / minutes if minutes > 0 else None


def _throughput(runs: Sequence[Sequence[RequestRecord]]) -> float | None:
    seconds = sum(
        max(record.ended_at_s for record in run) - min(record.scheduled_at_s for record in run)
        for run in runs
        if run
    )
    tokens = sum(record.output_tokens for run in runs for record in run)
    return tokens / seconds if seconds > 0 else None
