"""Reads untrusted mappings field by field; every error names the source and the field."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from engine.core.slo import parse_duration
from loadtests.errors import ProfileError

REQUIRED: Any = object()


class Fields:
    """The fields of one mapping, each taken once; `finish` refuses what nobody took."""

    def __init__(self, values: Any, source: str, prefix: str = "") -> None:
        self._source, self._prefix = source, prefix
        if not isinstance(values, Mapping):
            self.fail("", "a mapping of fields", values)
        self._values = dict(values)
        self._known: list[str] = []

    def inner(self, name: str, values: Any) -> Fields:
        """The fields of a mapping inside this one."""
        return Fields(values, self._source, f"{self._prefix}{name}.")

    def fail(self, name: str, wanted: str, value: Any) -> NoReturn:
        """Raises the one line for a field at fault."""
        path = f"{self._prefix}{name}".strip(".") or "the file"
        raise ProfileError(f"{self._source}: {path} must be {wanted}, not {value!r}")

    def finish(self) -> None:
        """Refuses the fields nobody took."""
        for name in self._values:
            known = ", ".join(self._known)
            raise ProfileError(f"{self._source}: unknown field {self._prefix}{name}; the fields are {known}")

    def take(self, name: str, default: Any = REQUIRED) -> Any:
        """The value of `name`, whatever it is."""
        self._known.append(name)
        value = self._values.pop(name, default)
        if value is REQUIRED:
            raise ProfileError(f"{self._source}: {self._prefix}{name} is missing")
        return value

    def __contains__(self, name: str) -> bool:
        """Whether the field was given, and not taken yet."""
        return name in self._values

    def text(self, name: str, default: Any = REQUIRED) -> str:
        value = self.take(name, default)
        return value.strip() if isinstance(value, str) else self.fail(name, "text", value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.take(name, default)
        return value if isinstance(value, bool) else self.fail(name, "true or false", value)

    def choice(self, name: str, choices: Sequence[str], default: Any = REQUIRED) -> str:
        value = self.take(name, default)
        return str(value) if value in choices else self.fail(name, "one of " + ", ".join(choices), value)

    def number(self, name: str, default: Any = REQUIRED, *, minimum: float) -> float:
        value = self.take(name, default)
        if _is_number(value) and value >= minimum:
            return float(value)
        return self.fail(name, f"a number from {minimum:g}", value)

    def optional(self, name: str, minimum: float) -> float | None:
        return self.number(name, minimum=minimum) if name in self._values else self.take(name, None)

    def whole(self, name: str, default: Any = REQUIRED, *, minimum: int) -> int:
        return self.as_whole(name, self.take(name, default), minimum)

    def as_whole(self, name: str, value: Any, minimum: int) -> int:
        """`value`, taken before, as a whole number."""
        if isinstance(value, int) and not isinstance(value, bool) and value >= minimum:
            return value
        return self.fail(name, f"a whole number from {minimum}", value)

    def numbers(self, name: str, count: int | None = None) -> tuple[float, ...]:
        """A list of numbers, `count` of them when given, else at least one."""
        value = self.take(name)
        is_list = isinstance(value, list) and value and all(_is_number(item) for item in value)
        if not is_list or (count is not None and len(value) != count):
            return self.fail(name, f"a list of {count or 'some'} numbers", value)
        return tuple(float(item) for item in value)

    def time(self, name: str) -> tuple[float | None, bool]:
        """A number from 0 in the file's own unit, or a duration in seconds; and whether it is the latter."""
        value = self.take(name, None)
        if value is None or (_is_number(value) and value >= 0):
            return (None if value is None else float(value)), False
        try:
            return parse_duration(str(value)), True
        except ValueError:
            return self.fail(name, "a number from 0 or a duration like 2s", value)

    def only_key(self, choices: Sequence[str]) -> str:
        """The one key of a mapping that says its own kind."""
        if len(self._values) == 1 and (key := next(iter(self._values))) in choices:
            return str(key)
        return self.fail("", "auto, a whole number, or one of " + ", ".join(choices), self._values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
