"""The best run so far: the same one wherever it is named."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.search.objective import Allowed, score
from tuner.store.models import TrialKind, TrialStatus
from tuner.trials import Trial

_UNSCORED = (TrialStatus.RUNNING, TrialStatus.LOST, TrialStatus.INVALID, TrialStatus.SUSPECT)


def settled(trials: Sequence[Trial]) -> list[Trial]:
    """Runs that ended and count: to their end, stopped early, or crashed."""
    return [trial for trial in trials if trial.status not in _UNSCORED]


def baseline_of(trials: Sequence[Trial]) -> Trial | None:
    """The latest run without chunking."""
    runs = [trial for trial in settled(trials) if trial.kind is TrialKind.BASELINE]
    return runs[-1] if runs else None


def by_hand_of(trials: Sequence[Trial], slo_pause_s: float) -> Trial | None:
    """The rule of thumb's first run that kept the pause."""
    runs = [trial for trial in settled(trials) if trial.kind is TrialKind.RULE and trial.is_complete]
    return next((t for t in runs if (t.worst_pause_s or 0.0) <= slo_pause_s), None)


def allowed_by(trials: Sequence[Trial], slo_pause_s: float) -> Allowed:
    """What a config may cost others. Without a baseline: no losses, any wait."""
    baseline, by_hand = baseline_of(trials), by_hand_of(trials, slo_pause_s)
    return Allowed.by(baseline, by_hand, slo_pause_s) if baseline else Allowed()


def improvements(trials: Sequence[Trial], slo_pause_s: float, seed: int) -> list[Trial]:
    """Each run that kept the SLO, in pause, losses and short requests' wait, with a shorter long TTFT than
    all such runs before it.

    Args:
        trials: of one study, in order.
        seed: of the study's own window; runs on other windows are not compared.
    """
    allowed = allowed_by(trials, slo_pause_s)
    found: list[Trial] = []
    best_s = float("inf")
    for trial in settled(trials):
        keeps = trial.seed == seed and trial.is_complete and score(trial, slo_pause_s, allowed).feasible
        if keeps and trial.long_ttft_p95_s is not None and trial.long_ttft_p95_s < best_s:
            found.append(trial)
            best_s = trial.long_ttft_p95_s
    return found


def best_of(trials: Sequence[Trial], slo_pause_s: float, seed: int) -> Trial | None:
    """The cheapest run that kept the SLO on the study's own window."""
    found = improvements(trials, slo_pause_s, seed)
    return found[-1] if found else None
