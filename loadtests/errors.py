"""Every error the load tests raise on purpose.

LoadTestError
├── ProfileError    a profile file cannot be used (file, field)
├── TargetError     the server does not answer, or not as a model server does
├── RecordingError  a recording cannot be written
└── LoadRunError    the load client ended without a result

A run that the client spoiled is a value (`validity.Validity`), never an exception.
"""

from __future__ import annotations


class LoadTestError(Exception):
    """One line that says what is wrong and how to mend it."""


class ProfileError(LoadTestError):
    """A profile that cannot be used."""


class TargetError(LoadTestError):
    """A server that cannot be tested."""


class RecordingError(LoadTestError):
    """A recording that cannot be written."""


class LoadRunError(LoadTestError):
    """The load client's process failed; the line ends with its own last words."""
