"""Whether a run measured the server, or the client: a spoiled run is rerun, not scored."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.quantiles import nearest_rank
from engine.core.records import Outcome, RequestRecord
from engine.core.report import dispatch_lag, is_long, ttft, worst_pause
from loadtests.traffic.schedule import Schedule

PROBE_S = 0.005  # the loop-lag probe's sleeps
_MAX_LAG_S = 0.010
_MAX_LAG_SHARE = 0.02  # of the median long TTFT
_MAX_NOISE_SHARE = 0.10  # of the pause SLO, for loop lag and for the deciding gap
_MAX_TOKEN_ERROR = 0.02
_BUSY_CPU_SHARE = 0.8

_FEWER = (
    "the load client itself needs more than a core: offer fewer streams at once (--profile FILE), or run the "
    "tuner on another machine with --engine URL"
)
_QUIETER = (
    "close other programs, run the tuner on another machine with --engine URL, offer fewer streams at once "
    "(--profile FILE), or set EVENFLOW_REAL_TIME=1 (Linux, as root)"
)


@dataclass(frozen=True, slots=True)
class _Reason:
    """A way in which a run was spoiled; `mend` is what to change, when it is not the machine's load."""

    what: str
    mend: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """What the client contributed to a run.

    Attributes:
        reasons: one line for each way in which the client spoiled the run; empty when it did not.
        mend: what to change so that a run like this one can be measured; empty without reasons.
        client_noise_s: by how much the deciding gap was longer at the client than at the engine; None
            when the engine sends no stamps or the stream was cut.
        prompt_token_error_p95: None when the server reported no prompt lengths.
        cpu_share: of one core, that the client's busiest process used.
    """

    reasons: tuple[str, ...]
    mend: str = ""
    dispatch_lag_p99_s: float | None
    loop_lag_p99_s: float | None
    client_noise_s: float | None
    prompt_token_error_p95: float | None
    cpu_share: float

    @property
    def ok(self) -> bool:
        return not self.reasons

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "ok": self.ok,
            "reasons": list(self.reasons),
            "mend": self.mend,
            "dispatch_lag_p99_s": self.dispatch_lag_p99_s,
            "loop_lag_p99_s": self.loop_lag_p99_s,
            "client_noise_s": self.client_noise_s,
            "prompt_token_error_p95": self.prompt_token_error_p95,
            "cpu_share": self.cpu_share,
        }


def judge(
    schedule: Schedule,
    records: Sequence[RequestRecord],
    *,
    loop_lags_s: Sequence[float] = (),
    slo_pause_s: float,
    cpu_share: float = 0.0,
    expected_generation: int | None = None,
    aborted: bool = False,
    num_lost: int = 0,
) -> Validity:
    """Applies the validity gate to a run's records.

    Args:
        aborted: the run stopped itself early, so that requests not sent are no fault.
        num_lost: load processes that were lost during the run.
    """
    dispatch = nearest_rank([lag for r in records if (lag := dispatch_lag(r)) is not None], 0.99)
    loop = nearest_rank(loop_lags_s, 0.99)
    noise = _client_noise(records, loop_lags_s if aborted else ())
    token_error = nearest_rank(_token_errors(records), 0.95)
    reasons = [
        *_over("dispatch lag p99", dispatch, _lag_limit(schedule, records)),
        *_over("event-loop lag p99", loop, _MAX_NOISE_SHARE * slo_pause_s),
        *_over("client share of the worst pause", noise, _MAX_NOISE_SHARE * slo_pause_s),
        *_token_reason(token_error),
        *_length_reasons(records),
        *_generation_reasons(records, expected_generation),
        *_id_reasons(schedule, records),
        *([] if aborted else _unsent_reasons(records)),
        *([_Reason(f"{num_lost} of the load processes died")] if num_lost else []),
    ]
    return Validity(
        reasons=tuple(reason.what for reason in reasons),
        mend=_mend(reasons, cpu_share),
        dispatch_lag_p99_s=dispatch,
        loop_lag_p99_s=loop,
        client_noise_s=noise,
        prompt_token_error_p95=token_error,
        cpu_share=cpu_share,
    )


def _mend(reasons: Sequence[_Reason], cpu_share: float) -> str:
    """What helps against the first reason; most come from a machine with too much to do."""
    if not reasons:
        return ""
    return reasons[0].mend or (_FEWER if cpu_share >= _BUSY_CPU_SHARE else _QUIETER)


def _over(what: str, seconds: float | None, limit_s: float) -> list[_Reason]:
    if seconds is None or seconds <= limit_s:
        return []
    return [_Reason(f"{what} {seconds * 1000:.1f} ms, at most {limit_s * 1000:.1f} ms allowed")]


def _lag_limit(schedule: Schedule, records: Sequence[RequestRecord]) -> float:
    """A share of the median TTFT of the long requests that got an answer."""
    long = (r for r in records if r.measured and is_long(r, schedule.long_prompt_tokens))
    median = nearest_rank([seconds for r in long if (seconds := ttft(r)) is not None], 0.5)
    return max(_MAX_LAG_S, _MAX_LAG_SHARE * (median or 0.0))


def _client_noise(records: Sequence[RequestRecord], lags_until_stop_s: Sequence[float]) -> float | None:
    """Client gap less engine gap of the trial's worst pause. For an open gap that stopped the run: how late
    the client woke at worst while it lasted.
    """
    worst = [(pause, r) for r in records if r.measured and (pause := worst_pause(r)) is not None]
    if not worst:
        return None
    pause, record = max(worst, key=lambda pair: pair[0].seconds)
    if pause.event is None:
        num_probes = math.ceil(pause.seconds / PROBE_S)
        return max(lags_until_stop_s[-num_probes:], default=None)
    earlier, later = (record.events[k].emitted_at_s for k in (pause.event - 1, pause.event))
    return None if earlier is None or later is None else pause.seconds - (later - earlier)


def _token_errors(records: Sequence[RequestRecord]) -> list[float]:
    return [
        abs(r.prompt_tokens - r.planned_prompt_tokens) / r.planned_prompt_tokens
        for r in records
        if r.prompt_tokens is not None
    ]


def _token_reason(error: float | None) -> list[_Reason]:
    if error is None or error < _MAX_TOKEN_ERROR:
        return []
    what = f"prompt lengths are off by {error:.1%} (p95), under {_MAX_TOKEN_ERROR:.0%} allowed"
    return [_Reason(what, "the server's POST /tokenize has to count as its chat route does")]


def _length_reasons(records: Sequence[RequestRecord]) -> list[_Reason]:
    done = [r for r in records if r.outcome is Outcome.COMPLETED]
    short = [r for r in done if r.output_tokens != r.max_tokens]
    if not short:
        return []
    one = short[0]
    seen = f"{one.id}: {one.output_tokens} of {one.max_tokens} tokens"
    what = f"{len(short)} answers are not as long as planned ({seen})"
    return [_Reason(what, "the server has to keep min_tokens and ignore_eos")]


def _generation_reasons(records: Sequence[RequestRecord], expected: int | None) -> list[_Reason]:
    if expected is None:
        return []
    others = {r.generation for r in records if r.http_status == 200 and r.generation != expected}
    if not others:
        return []
    what = f"responses carry config generation {sorted(map(str, others))}, not {expected}"
    return [_Reason(what, "let nobody else change the server's config meanwhile")]


def _id_reasons(schedule: Schedule, records: Sequence[RequestRecord]) -> list[_Reason]:
    seen = Counter(r.id for r in records)
    missing = [request.id for request in schedule.requests if request.id not in seen]
    twice = [request_id for request_id, count in seen.items() if count > 1]
    lines = [f"no record of {', '.join(missing[:3])}"] if missing else []
    lines += [f"several records of {', '.join(twice[:3])}"] if twice else []
    return [_Reason(line, "give every request of the trace an id of its own") for line in lines]


def _unsent_reasons(records: Sequence[RequestRecord]) -> list[_Reason]:
    # A record with an error says why it is no fault of the client's: a turn that the server kept waiting.
    unsent = [r.id for r in records if r.outcome is Outcome.NEVER_SENT and r.error is None]
    return [_Reason(f"{len(unsent)} requests were never sent ({unsent[0]})")] if unsent else []
