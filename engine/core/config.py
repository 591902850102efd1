"""The scheduler's knobs: one frozen value, every field live."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from engine.core.errors import ConfigError
from engine.core.json_text import shown


class PrefillPolicy(StrEnum):
    """How many prompt tokens a step may read while somebody streams."""

    FIXED = "fixed"
    PACED = "paced"
    WHOLE = "whole"


class PrefillOrder(StrEnum):
    """Which prompt is read next."""

    FCFS = "fcfs"
    SHORTEST = "shortest"
    AGED = "aged"


def _knob(default: Any, meaning: str, minimum: float | None = None, maximum: float | None = None) -> Any:
    metadata = {"meaning": meaning, "minimum": minimum, "maximum": maximum}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Every knob of the scheduler. Build one from untrusted values with `parse_config`."""

    prefill_policy: PrefillPolicy = _knob(
        PrefillPolicy.FIXED, "`fixed`, `paced` (as many tokens as fit `pause_target_s`), `whole`"
    )
    prefill_chunk_tokens: int = _knob(
        1024,
        "total prefill tokens a step may run while anybody streams",
        1,
        1 << 20,
    )
    solo_chunk_tokens: int = _knob(
        2048, "the same while nobody streams; 0 = the whole prompt in one pass", 0, 1 << 20
    )
    pause_target_s: float = _knob(0.5, "step time the paced policy aims under", 0.001, 60.0)
    decode_steps_per_chunk: int = _knob(1, "decode steps between two chunks", 1, 64)
    prefill_order: PrefillOrder = _knob(PrefillOrder.FCFS, "`fcfs`, `shortest`, `aged`")
    max_running_requests: int = _knob(16, "prefilling and streaming", 1, 4096)
    max_waiting_requests: int = _knob(64, "queue length", 0, 1 << 20)
    max_waiting_prefill_tokens: int = _knob(65536, "uncached prompt tokens in the queue", 0, 1 << 30)
    max_queue_wait_s: float = _knob(60.0, "refuse when the predicted TTFT is beyond it", 0.01, 86400.0)
    kv_budget_tokens: int | None = _knob(
        None, "tokens of KV that may be promised; null = from memory", 1, 1 << 40
    )
    prefix_cache_bytes: int | None = _knob(
        None, "memory for prefixes that were read before; 0 = keep none, null = from memory", 0, 1 << 50
    )

    def to_mapping(self) -> dict[str, Any]:
        """Plain JSON values, one per knob."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, StrEnum) else value


def parse_config(values: Mapping[str, Any], base: SchedulerConfig | None = None) -> SchedulerConfig:
    """A config with `values` laid over `base` (the defaults when None): all of them, or none.

    Raises:
        ConfigError: not a mapping, an unknown knob, or a value of the wrong type or range; names every one
            at fault.
    """
    if not isinstance(values, Mapping):
        raise ConfigError([f"a config must be an object of knobs, not {shown(values)}"])
    base = base or SchedulerConfig()
    known = {f.name: f for f in dataclasses.fields(SchedulerConfig)}
    problems = [
        f"unknown knob {shown(name)}; the knobs are {', '.join(known)}"
        for name in values
        if name not in known
    ]
    parsed: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            continue
        try:
            parsed[name] = _parse_knob(known[name], value)
        except ValueError as error:
            problems.append(f"{name} must be {error}, not {shown(value)}")
    if problems:
        raise ConfigError(problems)
    return dataclasses.replace(base, **parsed)


def _parse_knob(knob: dataclasses.Field[Any], value: Any) -> Any:
    if isinstance(knob.default, StrEnum):
        return _parse_choice(type(knob.default), value)
    if knob.default is None and value is None:
        return None
    return _parse_number(knob, value)


def _parse_choice(choices: type[StrEnum], value: Any) -> StrEnum:
    try:
        return choices(value)
    except ValueError:
        raise ValueError("one of " + ", ".join(choices)) from None


def _parse_number(knob: dataclasses.Field[Any], value: Any) -> float | int:
    whole = not isinstance(knob.default, float)
    minimum, maximum = knob.metadata["minimum"], knob.metadata["maximum"]
    wanted = f"{'a whole number' if whole else 'a number'} from {minimum} to {maximum}"
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ValueError(wanted)
    if not minimum <= value <= maximum:
        raise ValueError(wanted)
    return value if whole else float(value)


def config_schema() -> dict[str, Any]:
    """JSON schema of the knobs, with defaults, ranges and meanings."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {f.name: _knob_schema(f) for f in dataclasses.fields(SchedulerConfig)},
    }


def _knob_schema(knob: dataclasses.Field[Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"description": knob.metadata["meaning"], "default": _plain(knob.default)}
    if isinstance(knob.default, StrEnum):
        return schema | {"type": "string", "enum": [choice.value for choice in type(knob.default)]}
    number = "number" if isinstance(knob.default, float) else "integer"
    bounds = {"minimum": knob.metadata["minimum"], "maximum": knob.metadata["maximum"]}
    return schema | bounds | {"type": [number, "null"] if knob.default is None else number}
