"""Every error the core raises on purpose.

EvenflowError
├── ConfigError       a knob is unknown or out of range
├── TraceError        a trace or step file cannot be read (file, line, field)
└── FitError          step records do not explain a cost model

A refused request is a value (`admission.Refused`), never an exception.
"""

from __future__ import annotations

from collections.abc import Sequence


class EvenflowError(Exception):
    """One line that says what is wrong and how to mend it."""


def reason(error: Exception) -> str:
    """What an error says, without the number and the path that the system's errors carry."""
    return getattr(error, "strerror", None) or str(error)


class ConfigError(EvenflowError):
    """A proposed config was rejected whole; `problems` holds one line per knob at fault."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(self.problems))


class TraceError(EvenflowError):
    """A line of a trace or step file that cannot be used."""


class FitError(EvenflowError):
    """Too few step records to fit a cost model, or none that explains them."""
