"""Which knobs mattered, by Optuna's own measure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from engine.core.config import PrefillPolicy

# PED-ANOVA compares the best tenth with all; of fewer configs that is no group.
LEAST_CONFIGS = 30
# A knob that acts under one policy only.
_BELONGS_TO = {
    "prefill_chunk_tokens": PrefillPolicy.FIXED.value,
    "pause_target_s": PrefillPolicy.PACED.value,
}


@dataclass(frozen=True, slots=True)
class Sample:
    """A config and what it came to.

    Attributes:
        long_ttft_s: None when it is not known (the run was stopped early) or unbounded.
    """

    config: Mapping[str, Any]
    worst_pause_s: float | None
    long_ttft_s: float | None


@dataclass(frozen=True, slots=True)
class Importance:
    """Shares by knob, which add up to 1, of the objective and of the constraint.

    Attributes:
        num_configs: behind the shares of the long TTFT, and of the worst pause.
    """

    long_ttft: Mapping[str, float]
    worst_pause: Mapping[str, float]
    num_configs: tuple[int, int]


def knob_importance(samples: Sequence[Sample]) -> Importance | None:
    """What getting a value among the best tenth depended on; None with too few configs to say.

    Source: PED-ANOVA (Watanabe et al., IJCAI 2023), as Optuna implements it, with knobs that belong to one
    policy taken as conditional.
    """
    ttfts = [(s.config, s.long_ttft_s) for s in samples if s.long_ttft_s is not None]
    pauses = [(s.config, s.worst_pause_s) for s in samples if s.worst_pause_s is not None]
    if min(len(ttfts), len(pauses)) < LEAST_CONFIGS:
        return None
    return Importance(_shares(ttfts), _shares(pauses), (len(ttfts), len(pauses)))


def _shares(pairs: Iterable[tuple[Mapping[str, Any], float | None]]) -> dict[str, float]:
    listed = [(_parameters(config), value) for config, value in pairs]
    distributions = _distributions([params for params, _ in listed])
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="minimize")
    for params, value in listed:
        known = {name: params[name] for name in params if name in distributions}
        held = {name: distributions[name] for name in known}
        study.add_trial(optuna.trial.create_trial(value=value, params=known, distributions=held))
    shares = optuna.importance.get_param_importances(study) if distributions else {}
    return {name: share for name, share in shares.items() if math.isfinite(share)}


def _parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The knobs that act under the config's policy."""
    policy = config["prefill_policy"]
    return {
        name: value
        for name, value in config.items()
        if value is not None and _BELONGS_TO.get(name, policy) == policy
    }


def _distributions(listed: Sequence[Mapping[str, Any]]) -> dict[str, BaseDistribution]:
    """Of each knob that took more than one value, the range it was seen in."""
    values: dict[str, set[Any]] = {}
    for params in listed:
        for name, value in params.items():
            values.setdefault(name, set()).add(value)
    return {name: _distribution(seen) for name, seen in values.items() if len(seen) > 1}


def _distribution(seen: set[Any]) -> BaseDistribution:
    if len(seen) <= 4 or not all(isinstance(value, int | float) for value in seen):
        return CategoricalDistribution(sorted(seen))
    low, high = min(seen), max(seen)
    if all(isinstance(value, int) for value in seen):
        return IntDistribution(int(low), int(high), log=low > 0)
    return FloatDistribution(float(low), float(high), log=low > 0)
