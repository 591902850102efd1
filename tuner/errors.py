"""Every error the tuner raises on purpose, and the exit status each ends a command with.

TunerError            1  one line on stderr
├── EngineError          the server does not answer, or not as an engine of ours does
│   └── StaleConfigError somebody else changed the config first
├── StoreError           the database cannot be used
├── StudyError           the named study does not fit what was asked
└── UnfinishedError      the budget ended before a winner was confirmed
UsageError            2  the command line makes no sense
Interrupted         130  Ctrl-C or SIGTERM; not an Exception, so that nothing swallows it

That no config keeps the SLO is a value (`study.Result.winner` is None), never an exception.
"""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NO_CONFIG = 3


class TunerError(Exception):
    """One line that says what is wrong and how to mend it."""


class EngineError(TunerError):
    """A server that cannot be tuned."""


class StaleConfigError(EngineError):
    """The config was changed by somebody else since it was read."""


class StoreError(TunerError):
    """A database that cannot be used."""


class StudyError(TunerError):
    """A study that does not fit what was asked of it."""


class UnfinishedError(TunerError):
    """The budget ended before a winner was confirmed."""


class UsageError(Exception):
    """A command line that makes no sense; one line."""


class Interrupted(KeyboardInterrupt):
    """The user (SIGINT) or the system (SIGTERM) wants this process to end.

    Attributes:
        hint: how to go on, when there is a way.
    """

    def __init__(self, signum: int) -> None:
        self.signum = signum
        self.hint = ""
        super().__init__(signum)

    @property
    def exit_status(self) -> int:
        return 128 + self.signum
