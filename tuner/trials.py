"""A live trial as the study looks back on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from engine.core.config import SchedulerConfig, parse_config
from engine.core.quantiles import nearest_rank
from tuner.store.models import TrialKind, TrialRow, TrialStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of one config. Seconds; None where the run did not get that far.

    Attributes:
        long_ttfts_s: one per long request; +inf for one that was refused, failed or never sent.
        counts: measured requests by outcome.
    """

    number: int
    kind: TrialKind
    status: TrialStatus
    config: SchedulerConfig
    seed: int
    round: int = 0
    worst_pause_s: float | None = None
    long_ttft_p95_s: float | None = None
    short_ttft_p95_s: float | None = None
    num_streams: int = 0
    shed_rate: float = 0.0
    long_ttfts_s: tuple[float, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    elapsed_s: float = 0.0
    predicted_worst_pause_s: float | None = None
    predicted_long_ttft_s: float | None = None
    problems: str = ""

    @classmethod
    def from_row(cls, row: TrialRow) -> Self:
        summary: dict[str, Any] = row.summary or {}
        return cls(
            number=row.number,
            kind=row.kind,
            status=row.status,
            config=parse_config(row.config),
            seed=row.seed,
            round=row.round,
            worst_pause_s=row.worst_pause_s,
            long_ttft_p95_s=row.long_ttft_p95_s,
            short_ttft_p95_s=summary.get("short_ttft_p95_s"),
            num_streams=summary.get("num_streams", 0),
            shed_rate=row.shed_rate or 0.0,
            long_ttfts_s=tuple(math.inf if t is None else t for t in summary.get("long_ttfts_s", ())),
            counts=summary.get("counts", {}),
            elapsed_s=row.elapsed_s,
            predicted_worst_pause_s=row.predicted_worst_pause_s,
            predicted_long_ttft_s=row.predicted_long_ttft_s,
            problems=row.problems,
        )

    @property
    def is_bound(self) -> bool:
        """Stopped early: the worst pause is at least this long, the TTFT unknown."""
        return self.status is TrialStatus.ABORTED

    @property
    def is_complete(self) -> bool:
        """Ran to its end and may be scored."""
        return self.status is TrialStatus.DONE

    @property
    def num_requests(self) -> int:
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is printed of a config: one trial's numbers, or several pooled.

    Attributes:
        long_ttft_n: long requests behind the percentile.
        is_bound: stopped early: the pause is at least this long, the TTFT unknown.
    """

    config: SchedulerConfig
    long_ttft_p95_s: float | None
    long_ttft_n: int
    worst_pause_s: float | None
    shed_rate: float
    replicates: int
    num_requests: int
    is_bound: bool = False


def pool(trials: Sequence[Trial]) -> Outcome:
    """The numbers of runs of one config: samples pooled, the worst pause of all."""
    ttfts = [ttft for trial in trials for ttft in trial.long_ttfts_s]
    worst = [trial.worst_pause_s for trial in trials if trial.worst_pause_s is not None]
    requests = sum(trial.num_requests for trial in trials)
    refused = sum(trial.counts.get("refused", 0) for trial in trials)
    p95 = nearest_rank(ttfts, 0.95)
    bound = any(trial.is_bound for trial in trials)
    return Outcome(
        config=trials[0].config,
        long_ttft_p95_s=None if bound or p95 is None or math.isinf(p95) else p95,
        long_ttft_n=len(ttfts),
        worst_pause_s=max(worst, default=None),
        shed_rate=refused / requests if requests else 0.0,
        replicates=len(trials),
        num_requests=requests,
        is_bound=bound,
    )
