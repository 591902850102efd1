"""What traffic a study offers: a profile sized for the target, or a recorded trace."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from engine.core.errors import TraceError
from loadtests.errors import ProfileError
from loadtests.traffic.draws import longest
from loadtests.traffic.offered_load import build_schedule
from loadtests.traffic.profile import Profile, TraceSource
from loadtests.traffic.profiles import load_profile, profile_names
from loadtests.traffic.recorded import Recorded, read_recorded
from loadtests.traffic.replay import ReplayOptions
from loadtests.traffic.schedule import Schedule, Sizing
from loadtests.traffic.trace_profiles import build_trace_schedule, find_trace
from tuner.budget import RUNS_PER_BUDGET
from tuner.errors import TunerError
from tuner.traffic.held_out import HeldOut, Part
from tuner.traffic.windows import is_confirmed, searched_index

# A long prompt must freeze the streams for at least this many times the SLO when it is read whole, or
# chunking would have nothing to show.
_MIN_LONG_SLOS = 3.0


Build = Callable[[int, Sizing, int], Schedule]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Traffic not yet sized for a target.

    Attributes:
        num_streams: requests that stream at the same time for most of it.
        scale: how much of it a run plays; a study keeps it, so that its runs stay comparable. Of a profile
            the length of an `auto` prompt in pause SLOs, of a trace the seconds that are replayed.
        long_prefill_slos: for `Capacity.sizing`.
        build: the schedule of a seed, in a study of the other seed.
        longest_answer_tokens: that it can have, before it is sized.
        held_out: what a recorded trace keeps for the confirmation, in words; empty where every seed is fresh.
        num_fresh: different windows that can be confirmed on; None where every seed is one.
    """

    name: str
    num_streams: int
    scale: float
    long_prefill_slos: float
    build: Build
    longest_answer_tokens: float
    held_out: str = ""
    num_fresh: int | None = None

    def schedules(self, sizing: Sizing, study_seed: int) -> Callable[[int], Schedule]:
        """The requests of each seed, for a target of this size; built once each."""
        return cache(lambda seed: self.build(seed, sizing, study_seed))


def check_streams(name: str, longest_answer_tokens: float) -> None:
    """Raises: TunerError: a pause is between two tokens, and no answer has two."""
    if longest_answer_tokens < 2:
        raise TunerError(
            f"no answer of {name} is longer than one token, so no stream can pause and there is nothing to "
            "tune; give it longer answers (max_tokens of a profile, out of a trace)"
        )


def is_profile(name: str) -> bool:
    """Whether a command's argument names a profile, and not a trace."""
    return name in profile_names() or is_profile_file(name)


def is_profile_file(name: str) -> bool:
    return Path(name).suffix in (".yaml", ".yml")


def profile_traffic(
    name_or_path: str, slo_pause_s: float, budget_s: float = math.inf, scale: float | None = None
) -> Traffic:
    """A profile's traffic.

    Args:
        scale: None plays as much of it as the budget allows.

    Raises:
        TunerError: no such profile, or one that cannot be used.
    """
    try:
        profile = load_profile(name_or_path)
        if profile.trace:
            return _trace_profile_traffic(profile, profile.trace, budget_s, scale)
    except (ProfileError, TraceError) as error:
        raise TunerError(str(error)) from error
    slos = scale or _affordable_slos(profile, slo_pause_s, budget_s)
    fitted = dataclasses.replace(profile, long_prefill_slos=slos)
    build = _refusing(lambda seed, sizing, _: build_schedule(fitted, seed, sizing))
    return Traffic(profile.name, _num_lanes(profile), slos, slos, build, _longest_answer(profile))


def _trace_profile_traffic(
    profile: Profile, trace: TraceSource, budget_s: float, scale: float | None
) -> Traffic:
    recorded = read_recorded(find_trace(trace.file))
    window_s = scale or min(profile.duration, budget_s / RUNS_PER_BUDGET)
    build = _refusing(lambda seed, sizing, _: build_trace_schedule(profile, recorded, seed, sizing, window_s))
    note = "the profile replays its trace's beginning: confirmed on the very requests that it is searched on"
    slos, most = profile.long_prefill_slos, _longest_recorded(recorded)
    return Traffic(profile.name, 1, window_s, slos, build, most, note, num_fresh=0)


def _refusing(build: Build) -> Build:
    """The same, with the tuner's own error for traffic that cannot be made."""

    def checked(seed: int, sizing: Sizing, study_seed: int) -> Schedule:
        try:
            return build(seed, sizing, study_seed)
        except (ProfileError, TraceError) as error:
            raise TunerError(str(error)) from error

    return checked


def _affordable_slos(profile: Profile, slo_pause_s: float, budget_s: float) -> float:
    if profile.time_unit != "long_prefill":
        return profile.long_prefill_slos
    run_units = profile.warm_up + profile.duration
    affordable = budget_s / (RUNS_PER_BUDGET * run_units * slo_pause_s)
    return min(profile.long_prefill_slos, max(_MIN_LONG_SLOS, affordable))


def _longest_answer(profile: Profile) -> float:
    """Of a measured request; an `auto` one is as long as the target can write."""
    lengths = [group.max_tokens for group in profile.groups if not group.warm_up]
    return max((math.inf if one.kind == "auto" else longest(one) for one in lengths), default=0)


def _longest_recorded(recorded: Recorded) -> int:
    return max(row.output_tokens for row in recorded.rows)


def _num_lanes(profile: Profile) -> int:
    lanes = sum(g.arrivals.count for g in profile.groups if g.arrivals.process == "lanes")
    return max(1, lanes)


def trace_traffic(path: str, budget_s: float, scale: float | None = None) -> Traffic:
    """A recorded trace: from its beginning for the search, what `HeldOut` keeps for the confirmation.

    Args:
        scale: None replays as much as the budget allows.

    Raises:
        TunerError: the file cannot be read or holds nothing to replay.
    """
    recorded = recorded_trace(path)
    window_s = scale or budget_s / RUNS_PER_BUDGET
    name = Path(path).name
    parts = HeldOut(recorded, window_s)

    def build(seed: int, sizing: Sizing, study_seed: int) -> Schedule:
        if is_confirmed(seed, study_seed):
            part = parts.confirmed(seed - study_seed)
        else:
            part = parts.searched(searched_index(seed, study_seed))
        return _build_replay(part, seed, sizing, window_s, name)

    most = _longest_recorded(recorded)
    return Traffic(name, 1, window_s, _MIN_LONG_SLOS, _refusing(build), most, parts.note, parts.num_windows)


def recorded_trace(path: str) -> Recorded:
    """Raises: TunerError: the file cannot be read or holds no request."""
    try:
        return read_recorded(path)
    except TraceError as error:
        raise TunerError(str(error)) from error


def _build_replay(part: Part, seed: int, sizing: Sizing, window_s: float, name: str) -> Schedule:
    options = ReplayOptions(
        start_s=part.start_s,
        end_s=part.start_s + window_s,
        context_tokens=sizing.usable_context_tokens,
        max_output_tokens=max(1, int(window_s / sizing.decode_step_s)),
    )
    return part.recorded.schedule(seed, options, name)
