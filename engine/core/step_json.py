"""Step records as JSON: the lines of `--steps` files and of `/admin/steps`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from engine.core.cost_model import Work
from engine.core.errors import TraceError
from engine.core.events import StepRecord
from engine.core.json_text import parse_json
from engine.core.plan import LayeredPass, PrefillChunk

_STEP_FIELDS, _WORK_FIELDS, _CHUNK_FIELDS, _LAYERED_FIELDS = (
    tuple(f.name for f in dataclasses.fields(kind)) for kind in (StepRecord, Work, PrefillChunk, LayeredPass)
)


def step_to_mapping(record: StepRecord, seq: int) -> dict[str, Any]:
    """Plain JSON values; `seq` numbers the records of one server process from 1 on, without gaps."""
    # By hand, because `dataclasses.asdict` takes ten times as long, and thousands are asked for at once.
    values = {name: getattr(record, name) for name in _STEP_FIELDS}
    values["work"] = {name: getattr(record.work, name) for name in _WORK_FIELDS}
    values["prefill"] = [_chunk_to_mapping(chunk) for chunk in record.prefill]
    return {"seq": seq, **values}


def _chunk_to_mapping(chunk: PrefillChunk) -> dict[str, Any]:
    values = {name: getattr(chunk, name) for name in _CHUNK_FIELDS}
    if chunk.layered:
        values["layered"] = {name: getattr(chunk.layered, name) for name in _LAYERED_FIELDS}
    return values


def step_from_mapping(values: Mapping[str, Any]) -> StepRecord:
    """Raises: KeyError, TypeError: a field is missing or of the wrong shape."""
    numbers = {name: _number(name, values[name]) for name in _STEP_FIELDS if name not in ("work", "prefill")}
    work = {name: _number(name, value) for name, value in dict(values["work"]).items()}
    chunks = tuple(_chunk_from_mapping(chunk) for chunk in values["prefill"])
    return StepRecord(**numbers, work=Work(**work), prefill=chunks)


def _chunk_from_mapping(values: Mapping[str, Any]) -> PrefillChunk:
    fields = dict(values)
    layered = fields.pop("layered", None)
    return PrefillChunk(**fields, layered=None if layered is None else LayeredPass(**dict(layered)))


def _number(name: str, value: Any) -> Any:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise TypeError(f"{name} must be a number from 0, not {value!r}")
    return value


def read_steps(lines: Iterable[str]) -> Iterator[StepRecord]:
    """Records of a `--steps` file.

    Raises:
        TraceError: a line is not a step record; names its number. A last line cut short by the end of
            the process is skipped.
    """
    numbered = list(enumerate((line for line in lines if line.strip()), 1))
    for number, line in numbered:
        try:
            yield step_from_mapping(parse_json(line))
        except (ValueError, KeyError, TypeError) as error:
            if number == len(numbered) and not line.endswith("\n"):
                return
            problem = f"it has no {error}" if isinstance(error, KeyError) else error
            raise TraceError(f"line {number} is not a step record: {problem}") from error
