"""The sampler behind both searches, simulated and live."""

from __future__ import annotations

import warnings
from typing import Any

import optuna


def make_sampler(seed: int, num_startup: int) -> Any:
    """TPE that models each policy's knobs together: the space is conditional.

    Args:
        num_startup: random picks before it has a model; enqueued configs count among them.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=num_startup, multivariate=True, group=True
        )
