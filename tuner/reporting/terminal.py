"""Telling a person how a study is getting on: live in a terminal, plain lines in a log."""

from __future__ import annotations

import math
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from loadtests.run import Progress as RunProgress

_DETAIL_COLUMN = 54


def in_seconds(value: float | None) -> str:
    """A measured duration; a dash when there is none."""
    if value is None:
        return "–"
    return f"{value:.2f} s" if math.isfinite(value) else "∞"


def about(seconds: float) -> str:
    """A rough duration, as a person would say it."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return "a few seconds"
    if seconds < 60:
        return f"{round(seconds, -1):.0f} s"
    minutes, rest = divmod(round(seconds / 10) * 10, 60)
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


class TerminalAnnouncer:
    """Implements `Announcer` on standard error. Use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None, note="", visible=False)
        self._search = ""

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def doing(self, text: str) -> None:
        self._search = ""
        self._progress.update(self._task, description=escape(text), total=None, note="", visible=True)

    def done(self, text: str, detail: str = "") -> None:
        self._progress.update(self._task, visible=False)
        line = f"{text:<{_DETAIL_COLUMN}} {detail}".rstrip()
        self._console.print(f"✓ {line}", style=None, highlight=False, markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        self._console.print(f"! {text}", style="yellow", highlight=False, markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """A line of its own."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def searching(self, done: int, total: int, best: str, left_s: float) -> None:
        note = f"{done}/{total}   {best}   about {about(left_s)} left"
        self._search = note
        self._progress.update(
            self._task,
            description="live trials",
            completed=done,
            total=total,
            note=escape(note),
            visible=True,
        )
        if not self._console.is_terminal:
            self.say(f"  live trials {note}")

    def running(self, progress: RunProgress) -> None:
        """How far the load client is with one run."""
        note = f"{progress.num_ended} of {progress.num_requests} requests, "
        note += f"longest pause {progress.worst_pause_s:.2f} s"
        shown = f"{self._search}   ({note})" if self._search else note
        self._progress.update(self._task, note=escape(shown))
