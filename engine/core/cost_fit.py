"""Fitting a cost model to step records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.core.cost_model import CostModel
from engine.core.errors import FitError
from engine.core.events import StepRecord
from engine.core.quantiles import nearest_rank

Array = npt.NDArray[np.float64]

_MIN_STEPS = 8
# A step this many times slower or quicker than the fit says was spent on something else (another process,
# a first compilation) or was timed badly, and would bend the fit.
_OUTLIER_RATIO = 3.0
# Errors are relative, but a step far shorter than usual is mostly a badly timed one: none weighs more than
# a step of this share of the median.
_LEAST_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model and how far to trust it.

    Attributes:
        prefill_error: median absolute relative error on held-out steps that read; `decode_error` on
            those that only decode.
    """

    costs: CostModel
    prefill_error: float
    decode_error: float
    num_prefills: int
    num_decodes: int


def fit_cost_model(records: Sequence[StepRecord]) -> Fit:
    """Non-negative least squares on relative errors: a step of 10 ms must be predicted as well as one of 1 s.

    Raises:
        FitError: fewer than 8 steps that read, or than 8 that only decode.
    """
    steps = [record for record in records if record.duration_s > 0]
    reading = [step for step in steps if step.work.prefill_tokens]
    decoding = [step for step in steps if not step.work.prefill_tokens]
    for kind, found in (("prefill", reading), ("decode", decoding)):
        if len(found) < _MIN_STEPS:
            raise FitError(f"{len(found)} {kind} steps are too few to fit; record at least {_MIN_STEPS}")
    trial = _fit([step for kind in (reading, decoding) for i, step in enumerate(kind) if i % 4 != 3])
    return Fit(
        costs=_fit(steps),
        prefill_error=_error(trial, reading[3::4]),
        decode_error=_error(trial, decoding[3::4]),
        num_prefills=len(reading),
        num_decodes=len(decoding),
    )


def _error(costs: CostModel, steps: Sequence[StepRecord]) -> float:
    errors = [abs(costs.seconds(step.work) / step.duration_s - 1) for step in steps]
    return nearest_rank(errors, 0.5) or 0.0


def _fit(steps: Sequence[StepRecord]) -> CostModel:
    first = _relative_nnls(steps)
    ratios = [step.duration_s / max(first.seconds(step.work), 1e-12) for step in steps]
    fits = [s for s, r in zip(steps, ratios, strict=True) if 1 / _OUTLIER_RATIO <= r <= _OUTLIER_RATIO]
    return _relative_nnls(fits) if len(fits) >= _MIN_STEPS else first


def _relative_nnls(steps: Sequence[StepRecord]) -> CostModel:
    features = np.array([step.work.features() for step in steps], dtype=np.float64)
    seconds = np.array([step.duration_s for step in steps], dtype=np.float64)
    weights = 1 / np.maximum(seconds, _LEAST_SHARE * np.median(seconds))
    weighted = features * weights[:, None]
    scale = np.maximum(np.abs(weighted).max(axis=0), 1e-300)
    solution = nnls(weighted / scale, seconds * weights) / scale
    return CostModel(*(float(value) for value in solution))


def nnls(matrix: Array, target: Array) -> Array:
    """The x ≥ 0 that minimises |matrix · x − target|; exact, for a handful of columns.

    Tries every set of active columns: with six columns that is 63 small least squares (a few ms), simpler
    and safer than an active-set iteration.

    Args:
        matrix: (rows, columns).
    """
    num_columns = matrix.shape[1]
    best, best_error = np.zeros(num_columns), float(np.sum(target**2))
    for chosen in range(1, 1 << num_columns):
        active = [c for c in range(num_columns) if chosen >> c & 1]
        solution = np.linalg.lstsq(matrix[:, active], target, rcond=None)[0]
        error = float(np.sum((matrix[:, active] @ solution - target) ** 2))
        if (solution >= 0).all() and error < best_error:
            best, best_error = np.zeros(num_columns), error
            best[active] = solution
    return best
