"""What a confirmation proves, and nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.trials import Trial

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Claim:
    """What was tested on fresh traffic.

    Attributes:
        num_streams: answers of at least two tokens: those that can pause.
        longest_pause_s: of all of them.
        most_beyond: with `CONFIDENCE`, at most this share of streams pauses longer than the SLO: the exact
            binomial bound after none of `num_streams` did. It takes streams as independent.
    """

    num_runs: int
    num_requests: int
    num_streams: int
    longest_pause_s: float
    most_beyond: float


def claim_of(runs: Sequence[Trial]) -> Claim:
    """The claim after runs of which every stream kept the SLO; the run that selected the config is not among
    them.
    """
    streams = sum(run.num_streams for run in runs)
    return Claim(
        num_runs=len(runs),
        num_requests=sum(run.num_requests for run in runs),
        num_streams=streams,
        longest_pause_s=max((run.worst_pause_s or 0.0 for run in runs), default=0.0),
        most_beyond=most_beyond(streams),
    )


def most_beyond(num_streams: int) -> float:
    """The upper bound on a rate after no event in so many trials; about 3 / n.

    Source: Clopper and Pearson, Biometrika 26 (1934); Hanley and Lippman-Hand, JAMA 249 (1983), "rule of
    three".
    """
    return 1.0 - (1.0 - CONFIDENCE) ** (1.0 / num_streams) if num_streams else 1.0
