"""Fitting a cost model to step records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.core.cost_model import CostModel, Work
from engine.core.errors import FitError
from engine.core.events import StepRecord

Array = npt.NDArray[np.float64]

_PREFILL = slice(0, 3)
_DECODE = slice(3, 6)
_MIN_RECORDS = 8
# A launch this many times slower than the fit says was spent on something else (another process, a
# first compilation) and would bend the fit; its place is in the error, not in the coefficients.
_OUTLIER_RATIO = 3.0


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model and how far to trust it.

    Attributes:
        prefill_error: median absolute relative error on held-out launches; likewise `decode_error`.
    """

    costs: CostModel
    prefill_error: float
    decode_error: float
    num_prefills: int
    num_decodes: int


def fit_cost_model(records: Sequence[StepRecord]) -> Fit:
    """Non-negative least squares on relative errors, prefill and decode apart.

    Relative weights, because a launch of 10 ms must be predicted as well as one of 1 s.

    Raises:
        FitError: fewer than 8 launches of either kind.
    """
    prefills = [r for r in records if r.prefill and r.duration_s > 0]
    decodes = [r for r in records if r.work.decode_rows and r.duration_s > 0]
    for kind, found in (("prefill", prefills), ("decode", decodes)):
        if len(found) < _MIN_RECORDS:
            raise FitError(f"{len(found)} {kind} launches are too few to fit; record at least {_MIN_RECORDS}")
    prefill, prefill_error = _fit_terms(prefills, _PREFILL)
    decode, decode_error = _fit_terms(decodes, _DECODE)
    costs = CostModel(*(float(c) for c in (*prefill, *decode)))
    return Fit(costs, prefill_error, decode_error, len(prefills), len(decodes))


def _fit_terms(records: Sequence[StepRecord], terms: slice) -> tuple[Array, float]:
    features = np.array([_features(r.work)[terms] for r in records], dtype=np.float64)
    seconds = np.array([r.duration_s for r in records], dtype=np.float64)
    held_out = np.arange(len(records)) % 4 == 3
    trial = _robust_nnls(features[~held_out], seconds[~held_out])
    errors = np.abs(features[held_out] @ trial / seconds[held_out] - 1)
    return _robust_nnls(features, seconds), float(np.median(errors))


def _features(work: Work) -> tuple[float, ...]:
    return tuple(float(f) for f in work.features())


def _robust_nnls(features: Array, seconds: Array) -> Array:
    first = _relative_nnls(features, seconds)
    fits = seconds <= _OUTLIER_RATIO * np.maximum(features @ first, 1e-12)
    return _relative_nnls(features[fits], seconds[fits]) if fits.any() else first


def _relative_nnls(features: Array, seconds: Array) -> Array:
    weighted = features / seconds[:, None]
    scale = np.maximum(np.abs(weighted).max(axis=0), 1e-300)
    solution: Array = nnls(weighted / scale, np.ones(len(seconds))) / scale
    return solution


def nnls(matrix: Array, target: Array) -> Array:
    """The x ≥ 0 that minimises |matrix · x − target|; exact, for a handful of columns.

    Tries every set of active columns: with three columns that is seven small least squares, simpler
    and safer than an active-set iteration. Args: matrix: (rows, columns).
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
