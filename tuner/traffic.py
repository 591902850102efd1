"""What traffic a study offers: a profile sized for the target, or a recorded trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.core.errors import TraceError
from engine.core.trace import TraceRow
from loadtests.errors import ProfileError
from loadtests.profiles import Profile, load_profile
from loadtests.replay import ReplayOptions, schedule_from_trace
from loadtests.schedule import Schedule, Sizing, build_schedule
from loadtests.traces.files import open_trace
from tuner.errors import TunerError

# A study makes about this many full runs (baseline, rule of thumb, searches, confirmations); the rest of
# its runs are stopped early.
RUNS_PER_BUDGET = 11
# A long prompt must freeze the streams for at least this many times the SLO when it is read whole, or
# chunking would have nothing to show.
_MIN_LONG_SLOS = 3.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic not yet sized for a target.

    Attributes:
        num_streams: requests that stream at the same time for most of it.
        scale: how much of it a run plays; a study keeps it, so that its runs stay comparable. Of a profile
            the length of an `auto` prompt in pause SLOs, of a trace the seconds that are replayed.
        long_prefill_slos: for `Capacity.sizing`.
    """

    name: str
    num_streams: int
    scale: float
    long_prefill_slos: float
    build: Callable[[int, Sizing], Schedule]


def profile_traffic(
    name_or_path: str, slo_pause_s: float, budget_s: float, scale: float | None = None
) -> Traffic:
    """A profile's traffic.

    Args:
        scale: None makes `auto` prompts as long as the budget allows.

    Raises:
        TunerError: no such profile, or one that cannot be used.
    """
    try:
        profile = load_profile(name_or_path)
    except ProfileError as error:
        raise TunerError(str(error)) from error
    slos = scale or _affordable_slos(profile, slo_pause_s, budget_s)
    fitted = dataclasses.replace(profile, long_prefill_slos=slos)

    def build(seed: int, sizing: Sizing) -> Schedule:
        try:
            return build_schedule(fitted, seed, sizing)
        except ProfileError as error:
            raise TunerError(str(error)) from error

    return Traffic(profile.name, _num_lanes(profile), slos, slos, build)


def _affordable_slos(profile: Profile, slo_pause_s: float, budget_s: float) -> float:
    if profile.time_unit != "long_prefill":
        return profile.long_prefill_slos
    run_units = profile.warm_up + profile.duration
    affordable = budget_s / (RUNS_PER_BUDGET * run_units * slo_pause_s)
    return min(profile.long_prefill_slos, max(_MIN_LONG_SLOS, affordable))


def _num_lanes(profile: Profile) -> int:
    lanes = sum(g.arrivals.count for g in profile.groups if g.arrivals.process == "lanes")
    return max(1, lanes)


def trace_traffic(path: str, budget_s: float, scale: float | None = None) -> Traffic:
    """A recorded trace from its beginning.

    Args:
        scale: None replays as much as the budget allows.

    Raises:
        TunerError: the file cannot be read or holds nothing to replay.
    """
    recording = read_trace(path)
    window_s = scale or budget_s / RUNS_PER_BUDGET
    name = Path(path).name

    def build(seed: int, sizing: Sizing) -> Schedule:
        return _build_replay(recording, seed, sizing, window_s, name)

    return Traffic(name, 1, window_s, _MIN_LONG_SLOS, build)


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace read whole, with at least one row.

    Attributes:
        block_tokens: of its prefix blocks.
        notes: what its reader made up or left out, one line each.
    """

    rows: list[TraceRow]
    block_tokens: int
    notes: tuple[str, ...]


def read_trace(path: str) -> Recording:
    """All of a trace.

    Raises:
        TunerError: the file cannot be read or holds no request.
    """
    try:
        trace = open_trace(path)
        rows = list(trace.rows)
    except TraceError as error:
        raise TunerError(str(error)) from error
    if not rows:
        raise TunerError(f"{path}: the trace holds no request")
    return Recording(rows, trace.header.block, trace.notes.lines)


def _build_replay(recording: Recording, seed: int, sizing: Sizing, window_s: float, name: str) -> Schedule:
    first_s = min((row.t for row in recording.rows), default=0.0)
    options = ReplayOptions(
        start_s=first_s,
        end_s=first_s + window_s,
        context_tokens=int(sizing.context_tokens * 0.9),
        max_output_tokens=max(1, int(window_s / sizing.decode_step_s)),
    )
    try:
        return schedule_from_trace(
            recording.rows,
            seed,
            options,
            name=name,
            block_tokens=recording.block_tokens,
            read_notes=recording.notes,
        )
    except TraceError as error:
        raise TunerError(str(error)) from error
