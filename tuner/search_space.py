"""Which configs are searched, and how a config is written as Optuna's parameters."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from engine.core.config import PrefillOrder, PrefillPolicy, SchedulerConfig

MIN_CHUNK_TOKENS = 16
_FRACTION = (0.3, 1.0)
_RUNNING = (4, 8, 16)
_SOLO = (0, 512, 2048)
_ORDERS = tuple(order.value for order in PrefillOrder)
_BESIDE_CHUNKING = ("solo_chunk_tokens", "prefill_order", "max_running_requests")
_POLICIES = (PrefillPolicy.FIXED.value, PrefillPolicy.PACED.value)


class Suggester(Protocol):
    """The part of an Optuna trial that picks parameters."""

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int: ...
    def suggest_float(self, name: str, low: float, high: float) -> float: ...
    def suggest_categorical(self, name: str, choices: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The knobs that are searched; every other knob keeps its value in `base`.

    The chunk size exists only for the fixed policy and the pause target only for the paced one.

    Attributes:
        slo_pause_s: the paced policy's target is searched as a share of it.
        max_chunk_tokens: a chunk as long as the longest prompt is no chunking.
        num_streams: streams that must be able to run at the same time, long requests included.
        idle: knobs that do nothing on this traffic: left as they are in `base`.
    """

    base: SchedulerConfig
    slo_pause_s: float
    max_chunk_tokens: int
    num_streams: int = 1
    idle: tuple[str, ...] = ()

    def suggest(self, trial: Suggester) -> SchedulerConfig:
        """The config that the trial picks."""
        policy = trial.suggest_categorical("prefill_policy", _POLICIES)
        picked: dict[str, Any] = {"prefill_policy": PrefillPolicy(policy)}
        if policy == PrefillPolicy.FIXED.value:
            high = max(MIN_CHUNK_TOKENS + 1, self.max_chunk_tokens)
            picked["prefill_chunk_tokens"] = trial.suggest_int(
                "prefill_chunk_tokens", MIN_CHUNK_TOKENS, high, log=True
            )
        else:
            fraction = trial.suggest_float("pause_target_fraction", *_FRACTION)
            picked["pause_target_s"] = round(fraction * self.slo_pause_s, 4)
        for name, choices in self.alternatives().items():
            picked[name] = trial.suggest_categorical(name, choices)
        if "prefill_order" in picked:
            picked["prefill_order"] = PrefillOrder(picked["prefill_order"])
        return dataclasses.replace(self.base, **picked)

    def alternatives(self) -> dict[str, tuple[Any, ...]]:
        """What the knobs beside the chunking itself may be, as Optuna's parameters."""
        known = zip(_BESIDE_CHUNKING, (_SOLO, _ORDERS, self._running()), strict=True)
        return {name: choices for name, choices in known if name not in self.idle}

    def parameters(self, config: SchedulerConfig) -> dict[str, Any]:
        """What `suggest` must be told to pick this config, for `study.enqueue_trial`."""
        picked: dict[str, Any] = {"prefill_policy": config.prefill_policy.value}
        if config.prefill_policy is PrefillPolicy.PACED:
            picked["pause_target_fraction"] = config.pause_target_s / self.slo_pause_s
        else:
            picked["prefill_chunk_tokens"] = config.prefill_chunk_tokens
        values = config.to_mapping()
        return picked | {name: values[name] for name in self.alternatives()}

    def distributions(self, config: SchedulerConfig) -> dict[str, Any]:
        """What `suggest` would draw this config's parameters from."""
        recorder = _Recorder(self.parameters(config))
        self.suggest(recorder)
        return recorder.distributions

    def contains(self, config: SchedulerConfig) -> bool:
        """Whether `suggest` could pick this config."""
        if config.prefill_policy.value not in _POLICIES:
            return False
        values, distributions = self.parameters(config), self.distributions(config)
        return all(_admits(distributions[name], value) for name, value in values.items())

    def _running(self) -> tuple[int, ...]:
        """Fewer slots than streams would make streams wait for each other."""
        return tuple(n for n in _RUNNING if n > self.num_streams) or (self.base.max_running_requests,)


class _Recorder:
    """A suggester that picks what it was given, and notes where from."""

    def __init__(self, picks: dict[str, Any]) -> None:
        self._picks = picks
        self.distributions: dict[str, Any] = {}

    def suggest_int(self, name: str, low: int, high: int, *, log: bool = False) -> int:
        self.distributions[name] = IntDistribution(low, high, log=log)
        return int(self._picks[name])

    def suggest_float(self, name: str, low: float, high: float) -> float:
        self.distributions[name] = FloatDistribution(low, high)
        return float(self._picks[name])

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        self.distributions[name] = CategoricalDistribution(choices)
        return self._picks[name]


def _admits(distribution: Any, value: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    return bool(distribution.low <= value <= distribution.high)


def unchunked(base: SchedulerConfig) -> SchedulerConfig:
    """Chunking off: what every other config is compared with."""
    return dataclasses.replace(base, prefill_policy=PrefillPolicy.WHOLE, solo_chunk_tokens=0)


def fixed_chunks(base: SchedulerConfig, chunk_tokens: int) -> SchedulerConfig:
    """The rule of thumb's config: nothing but a chunk size."""
    return dataclasses.replace(base, prefill_policy=PrefillPolicy.FIXED, prefill_chunk_tokens=chunk_tokens)


def scaled(config: SchedulerConfig, factor: float) -> SchedulerConfig:
    """The same config with so many times the work between two decode steps."""
    if config.prefill_policy is PrefillPolicy.PACED:
        return dataclasses.replace(config, pause_target_s=round(config.pause_target_s * factor, 4))
    return fixed_chunks(config, max(MIN_CHUNK_TOKENS, round(config.prefill_chunk_tokens * factor)))


def num_changes(config: SchedulerConfig, base: SchedulerConfig) -> int:
    """How many knobs differ, those of the chunking itself aside."""
    own = ("prefill_policy", "prefill_chunk_tokens", "pause_target_s")
    names = [field.name for field in dataclasses.fields(SchedulerConfig) if field.name not in own]
    return sum(getattr(config, name) != getattr(base, name) for name in names)


def num_shared(one: SchedulerConfig, other: SchedulerConfig) -> int:
    """Of how many searched knobs, those of the chunking itself aside, both have the same value."""
    return sum(getattr(one, name) == getattr(other, name) for name in _BESIDE_CHUNKING)


def describe(config: SchedulerConfig) -> str:
    """What a person is told of a config: its policy's own knob, and what differs from the defaults."""
    if config.prefill_policy is PrefillPolicy.WHOLE:
        return "chunking off"
    usual = SchedulerConfig()
    if config.prefill_policy is PrefillPolicy.PACED:
        parts = [f"paced to {config.pause_target_s:.3g} s"]
    else:
        parts = [f"{config.prefill_chunk_tokens} tokens"]
    named = {
        "solo_chunk_tokens": f"solo {config.solo_chunk_tokens or 'whole'}",
        "prefill_order": f"{config.prefill_order.value} first",
        "decode_steps_per_chunk": f"{config.decode_steps_per_chunk} decode steps a chunk",
        "max_running_requests": f"{config.max_running_requests} running",
    }
    parts += [text for name, text in named.items() if getattr(config, name) != getattr(usual, name)]
    return ", ".join(parts)
