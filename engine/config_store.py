"""Which config is in force, who put it there, and which one to go back to."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from engine.core.config import SchedulerConfig, parse_config
from engine.core.errors import ConfigError, EvenflowError, reason
from engine.core.json_text import parse_json

_MAX_HISTORY = 500
_FORMAT = 1


class Verdict(StrEnum):
    """What became of a change."""

    PENDING = "pending"
    KEPT = "kept"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """One generation of the config.

    Attributes:
        at: wall clock, ISO 8601 in UTC.
        changed: knobs that differ from the generation before.
        leased: on trial, and given up when whoever put it there no longer asks for it.
    """

    generation: int
    config: SchedulerConfig
    at: str
    who: str
    why: str
    changed: tuple[str, ...] = ()
    verdict: Verdict = Verdict.PENDING
    leased: bool = False

    def to_mapping(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return values | {
            "config": self.config.to_mapping(),
            "changed": list(self.changed),
            "verdict": self.verdict.value,
        }


class StaleGenerationError(EvenflowError):
    """Somebody changed the config first."""


class NothingKeptError(EvenflowError):
    """There is no kept config to go back to."""


class ConfigStore:
    """Generations of the config, numbered from 1, never reused. Owned by one thread.

    After a restart the config that was kept last is in force; a change that nobody kept does not
    survive. A start config that differs from the one of the last start comes before both.

    Args:
        start: the config to begin with.
        path: where the state lives; None keeps it in memory.
        warn: told in one line when the state on disk cannot be used.
    """

    def __init__(
        self,
        start: SchedulerConfig | None = None,
        path: Path | None = None,
        warn: Callable[[str], None] = lambda line: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._start = start or SchedulerConfig()
        self._path = path
        self._now = now
        self._history: list[ConfigChange] = []
        stored = self._load(warn)
        if stored and stored[0] == self._start and (kept := _last_kept(stored[1])):
            self._history = stored[1]
            if self.current is not kept:
                self._add(kept.config, "engine", f"restart with generation {kept.generation}", Verdict.KEPT)
        else:
            self._history = stored[1] if stored else []
            self._add(self._start, "engine", "start", Verdict.KEPT)

    @property
    def current(self) -> ConfigChange:
        return self._history[-1]

    @property
    def history(self) -> tuple[ConfigChange, ...]:
        """Oldest first."""
        return tuple(self._history)

    def replace(
        self,
        values: Mapping[str, Any],
        if_generation: int | None,
        who: str,
        why: str,
        *,
        onto_current: bool = False,
        keep: bool = False,
        leased: bool = False,
    ) -> ConfigChange:
        """A new generation with `values` over the defaults, or over the current config: all or nothing. The
        current one when that would change nothing, neither a knob nor what is on loan.

        Args:
            if_generation: the generation the caller knows; None does not care.
            leased: `end_lease` gives it up again.

        Raises:
            StaleGenerationError: the caller knows an old generation.
            ConfigError: one or more knobs are at fault.
        """
        self._check(if_generation)
        current = self.current
        config = parse_config(values, current.config if onto_current else None)
        as_before = leased == current.leased or not (leased or values)
        if config == current.config and as_before:
            return self.judge(current.generation, Verdict.KEPT) if keep else current
        return self._add(config, who, why, Verdict.KEPT if keep else Verdict.PENDING, leased)

    def end_lease(self) -> ConfigChange | None:
        """Goes back to the config before the leased ones, as a new generation; None when none is leased."""
        ended = self.current
        if not ended.leased:
            return None
        before = _last_owned(self._history)
        verdict = Verdict.KEPT if before.verdict is Verdict.KEPT else Verdict.PENDING
        why = f"the lease of generation {ended.generation} ended"
        return self._add(before.config, "engine", why, verdict)

    def rollback(self, if_generation: int | None, who: str, why: str) -> ConfigChange:
        """A new generation with the config that was kept before the current one, and is another.

        Raises:
            StaleGenerationError: the caller knows an old generation.
            NothingKeptError: the current one is the first ever kept.
        """
        self._check(if_generation)
        kept = _last_kept([change for change in self._history if change.config != self.current.config])
        if kept is None:
            raise NothingKeptError("no earlier config was kept; there is nothing to go back to")
        # All that came after it is gone back from: the next rollback goes on from there.
        undone = (change for change in self._history if change.generation > kept.generation)
        for change in [c for c in undone if c.verdict is Verdict.KEPT or c is self.current]:
            self.judge(change.generation, Verdict.ROLLED_BACK)
        return self._add(kept.config, who, why or f"rollback to generation {kept.generation}", Verdict.KEPT)

    def judge(self, generation: int, verdict: Verdict) -> ConfigChange:
        """Writes down what became of a generation. One that is kept is no longer leased.

        Raises:
            KeyError: no such generation.
        """
        for index, change in enumerate(self._history):
            if change.generation == generation:
                leased = change.leased and verdict is not Verdict.KEPT
                self._history[index] = dataclasses.replace(change, verdict=verdict, leased=leased)
                return self._history[index]
        raise KeyError(f"no generation {generation} in the history")

    def save(self) -> None:
        """Writes the state to its file, whole or not at all. Raises: OSError."""
        if self._path is None:
            return
        state = {
            "format": _FORMAT,
            "start": self._start.to_mapping(),
            "history": [change.to_mapping() for change in self._history],
        }
        write_atomically(self._path, json.dumps(state, indent=1))

    # -- inside --------------------------------------------------------------------------------------

    def _check(self, if_generation: int | None) -> None:
        current = self.current.generation
        if if_generation is not None and if_generation != current:
            raise StaleGenerationError(
                f"the config is at generation {current}, not {if_generation}; read it again"
            )

    def _add(
        self, config: SchedulerConfig, who: str, why: str, verdict: Verdict, leased: bool = False
    ) -> ConfigChange:
        before = self._history[-1] if self._history else None
        change = ConfigChange(
            generation=before.generation + 1 if before else 1,
            config=config,
            at=self._now().isoformat(timespec="milliseconds"),
            who=who,
            why=why,
            changed=_differences(before.config if before else SchedulerConfig(), config),
            verdict=verdict,
            leased=leased,
        )
        self._history.append(change)
        self._forget_oldest()
        return change

    def _forget_oldest(self) -> None:
        """Keeps the list bounded, and the configs to go back to in it."""
        while len(self._history) > _MAX_HISTORY:
            wanted = (_last_kept(self._history[:-1]), _last_owned(self._history))
            oldest = next(i for i, change in enumerate(self._history) if change not in wanted)
            del self._history[oldest]

    def _load(self, warn: Callable[[str], None]) -> tuple[SchedulerConfig, list[ConfigChange]] | None:
        if self._path is None or not self._path.exists():
            return None
        try:
            return _parse_state(parse_json(self._path.read_bytes()))
        except (OSError, ValueError, OverflowError, KeyError, TypeError, ConfigError) as error:
            copy = self._path.with_suffix(".corrupt.json")
            os.replace(self._path, copy)
            problem = f"cannot read the config state {self._path} ({reason(error)})"
            warn(f"{problem}; kept as {copy.name}, starting anew")
            return None


def _parse_state(state: Any) -> tuple[SchedulerConfig, list[ConfigChange]]:
    if state["format"] != _FORMAT:
        raise ValueError(f"format {state['format']!r} is not {_FORMAT}")
    history = [_parse_change(change) for change in state["history"]]
    generations = [0, *(change.generation for change in history)]
    if generations != sorted(set(generations)):
        raise ValueError("the generations are not in order")
    return parse_config(state["start"]), history


def _parse_change(values: Mapping[str, Any]) -> ConfigChange:
    return ConfigChange(
        generation=int(values["generation"]),
        config=parse_config(values["config"]),
        at=str(values["at"]),
        who=str(values["who"]),
        why=str(values["why"]),
        changed=tuple(values["changed"]),
        verdict=Verdict(values["verdict"]),
        leased=values.get("leased") is True,
    )


def _last_kept(history: list[ConfigChange]) -> ConfigChange | None:
    return next((change for change in reversed(history) if change.verdict is Verdict.KEPT), None)


def _last_owned(history: list[ConfigChange]) -> ConfigChange:
    """The config before the leased ones; what is kept is never leased, so there is one."""
    return next(change for change in reversed(history) if not change.leased)


def _differences(before: SchedulerConfig, after: SchedulerConfig) -> tuple[str, ...]:
    names = (f.name for f in dataclasses.fields(SchedulerConfig))
    return tuple(name for name in names if getattr(before, name) != getattr(after, name))


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file whole: a reader, or a crash, sees the old text or the new. Raises: OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def read_config_file(path: Path) -> SchedulerConfig:
    """A `--config` file: a JSON object of knobs, the rest at their defaults.

    Raises:
        ConfigError: unreadable, not an object, or knobs at fault; names the file.
    """
    try:
        values = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError([f"cannot read config {path}: {reason(error)}"]) from None
    if not isinstance(values, dict):
        raise ConfigError([f"config {path} must be a JSON object of knobs"])
    try:
        return parse_config(values)
    except ConfigError as error:
        raise ConfigError([f"config {path}: {problem}" for problem in error.problems]) from None
