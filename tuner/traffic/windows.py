"""Seeds of the windows that a study plays: none that was searched on is confirmed on."""

from __future__ import annotations

# Seeds of different rounds never meet: a study run again confirms on traffic it has not seen either.
_SEEDS_PER_ROUND = 1_000
_SIMULATED = 500_000


def confirmed_seed(study_seed: int, round_: int, index: int) -> int:
    """Of a window for the confirmation."""
    return study_seed + _SEEDS_PER_ROUND * (round_ + 1) + index


def simulated_seed(study_seed: int, index: int) -> int:
    """Of a window that is only simulated."""
    return study_seed + _SIMULATED + index


def is_confirmed(seed: int, study_seed: int) -> bool:
    """Whether the seed's window is kept for the confirmation."""
    return 0 < seed - study_seed < _SIMULATED


def searched_index(seed: int, study_seed: int) -> int:
    """Of the windows that are searched on; 0 is the study's own."""
    return 0 if seed == study_seed else 1 + seed - study_seed - _SIMULATED
