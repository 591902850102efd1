"""What a confirmation proves, and nothing more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.store.models import TrialStatus
from tuner.trials import Trial

CONFIDENCE = 0.95
# Of an interval, until it is no wider than a float tells apart.
_HALVINGS = 50


@dataclass(frozen=True, slots=True)
class Claim:
    """What was tested on fresh traffic.

    Attributes:
        num_streams: answers of at least two tokens: those that can pause.
        longest_pause_s: of all of them.
        num_windows: different windows that the runs played; 0 when there was none but the one that was
            searched on.
        num_candidates: configs that were tried on fresh traffic, the winner among them.
        most_beyond: with `CONFIDENCE` for all candidates together, at most this share of streams pauses
            longer than the SLO: the exact binomial bound after no stream of the different windows did, and
            every stream of the accidents. It takes streams as independent. None without a fresh window: the
            very requests that selected the config bound nothing.
        num_accidents: the winner's runs on fresh traffic that were set aside and made again; of the numbers
            above only `most_beyond` takes them in.
        num_accident_streams: those that could pause in them; which of them did is not known.
        longest_accident_s: the longest pause of those.
        narrow: the runs kept the SLO, but lie too near it for the next to be safe.
    """

    num_runs: int
    num_requests: int
    num_streams: int
    longest_pause_s: float
    num_windows: int
    num_candidates: int
    most_beyond: float | None
    num_accidents: int = 0
    num_accident_streams: int = 0
    longest_accident_s: float = 0.0
    narrow: bool = False


def claim_of(
    runs: Sequence[Trial], tried: Sequence[Trial], num_fresh: int | None = None, narrow: bool = False
) -> Claim:
    """The claim after runs of which every stream kept the SLO; the run that selected the config is not among
    them.

    Args:
        tried: all runs on fresh traffic, of every candidate, whatever became of them.
        num_fresh: different windows that there were; None where every run has one of its own.
    """
    own = [trial for trial in tried if trial.config == runs[0].config]
    accidents = [trial for trial in own if trial.status is TrialStatus.SUSPECT]
    candidates = len({trial.config for trial in tried})
    streams = sum(run.num_streams for run in runs)
    windows = len(runs) if num_fresh is None else min(num_fresh, len(runs))
    # Who plays a window again meets no new streams.
    different = streams * windows // len(runs)
    # A run that paused had a stream, even if it was stopped before that one's second token.
    spoiled = sum(max(1, trial.num_streams) for trial in accidents)
    return Claim(
        num_runs=len(runs),
        num_requests=sum(run.num_requests for run in runs),
        num_streams=streams,
        longest_pause_s=max((run.worst_pause_s or 0.0 for run in runs), default=0.0),
        num_windows=windows,
        num_candidates=candidates,
        most_beyond=most_beyond(different + spoiled, candidates, spoiled) if windows else None,
        num_accidents=len(accidents),
        num_accident_streams=spoiled,
        longest_accident_s=max((trial.worst_pause_s or 0.0 for trial in accidents), default=0.0),
        narrow=narrow,
    )


def most_beyond(num_streams: int, num_candidates: int = 1, num_beyond: int = 0) -> float:
    """The upper bound on a rate after so many events in so many trials; about 3 / n after none, for a single
    candidate. Who tries several until one passes must prove more of it (Bonferroni).

    Args:
        num_beyond: of `num_streams`.

    Source: Clopper and Pearson, Biometrika 26 (1934); Hanley and Lippman-Hand, JAMA 249 (1983), "rule of
    three".
    """
    doubt = (1.0 - CONFIDENCE) / num_candidates
    if num_beyond >= num_streams:
        return 1.0
    low, high = num_beyond / num_streams, 1.0
    for _ in range(_HALVINGS):
        rate = (low + high) / 2
        low, high = (rate, high) if _chance(num_beyond, num_streams, rate) > doubt else (low, rate)
    return high


def _chance(most: int, trials: int, rate: float) -> float:
    """Of at most so many events."""
    return math.fsum(
        math.exp(
            math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
            + k * math.log(rate) + (trials - k) * math.log1p(-rate)
        )
        for k in range(most + 1)
    )  # fmt: skip
