"""Profiles that replay a recorded trace, at a scale that fits the target."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from engine.core.errors import TraceError
from engine.core.quantiles import nearest_rank
from engine.core.trace import TraceRow
from loadtests.errors import ProfileError
from loadtests.traces import fixes
from loadtests.traffic.offered_load import build_schedule, long_prompt, slo_class, unit_s
from loadtests.traffic.profile import Profile, TraceSource
from loadtests.traffic.recorded import Recorded, read_recorded
from loadtests.traffic.replay import ReplayOptions
from loadtests.traffic.schedule import Schedule, ScheduledRequest, Sizing, uncached_tokens

_BESIDE = Path(__file__).parents[3] / "shared" / "traces"


def find_trace(file: str) -> Path:
    """A trace's path: as given, or in the folder that `EVENFLOW_TRACES` names, or else in `shared/traces`
    beside this checkout.

    Raises:
        ProfileError: it is nowhere.
    """
    folder = Path(os.environ.get("EVENFLOW_TRACES") or _BESIDE)
    for path in (Path(file), folder / file):
        if path.is_file():
            return path
    raise ProfileError(f"there is no trace {file} here or in {folder}; set EVENFLOW_TRACES to its folder")


def schedule_of(profile: Profile, seed: int, sizing: Sizing) -> Schedule:
    """The requests of any profile, its trace read if it has one.

    Raises:
        ProfileError: it cannot be used for this target, or its trace cannot.
    """
    if profile.trace is None:
        return build_schedule(profile, seed, sizing)
    try:
        recorded = read_recorded(find_trace(profile.trace.file))
        return build_trace_schedule(profile, recorded, seed, sizing)
    except TraceError as error:
        raise ProfileError(f"profile {profile.name}: {error}") from error


def build_trace_schedule(
    profile: Profile, recorded: Recorded, seed: int, sizing: Sizing, window_s: float | None = None
) -> Schedule:
    """The trace's beginning, as much of it and as fast as makes the load that the profile wants.

    Args:
        window_s: the time it takes; None is the profile's duration.

    Raises:
        TraceError: nothing is left to replay.
    """
    trace, threshold, unit = profile.trace, profile.long_prompt_tokens, unit_s(profile, sizing)
    assert trace is not None
    window_s = profile.duration * unit if window_s is None else window_s
    shrink = trace.shrink or _shrink(profile, trace, recorded.rows, sizing)
    options = ReplayOptions(
        mode=trace.mode,
        start_s=recorded.first_s + trace.start_s,
        max_idle_s=trace.max_idle_s,
        shrink=shrink,
        context_tokens=sizing.usable_context_tokens,
        max_output_tokens=max(1, int(window_s / sizing.decode_step_s)),
        grace_s=profile.grace_s,
        long_prompt_tokens=int(threshold.value) if threshold.kind == "fixed" else None,
    )
    whole = recorded.schedule(seed, options, profile.name)
    requests, speed = _at_load(whole.requests, trace.load, window_s, sizing)
    scale = f"the trace's first {requests[-1].at_s * speed:.0f} s at {speed:.3g} times its speed"
    lengths = f", lengths divided by {shrink}" if shrink > 1 else ""
    return replace(
        whole,
        requests=tuple(replace(request, slo_class=trace.slo_class) for request in requests),
        duration_s=window_s,
        classes=tuple(slo_class(target, unit) for target in profile.classes),
        notes=(scale + lengths, *whole.notes),
    )


def _shrink(profile: Profile, trace: TraceSource, rows: Sequence[TraceRow], sizing: Sizing) -> int:
    """Divides one prompt in ten to an `auto` prompt's length or more."""
    long = nearest_rank([row.prompt_tokens for row in rows], fixes.LONG_SHARE) or 1.0
    fits = min(long_prompt(profile, sizing), sizing.usable_context_tokens / 2)
    return max(1, -int(-long // fits))


def _at_load(
    requests: Sequence[ScheduledRequest], load: float, window_s: float, sizing: Sizing
) -> tuple[list[ScheduledRequest], float]:
    """The first requests that together cost `load` of the window, spread over it; and the speed of that."""
    costs = (
        sizing.seconds(uncached, request.max_tokens)
        for request, uncached in zip(requests, uncached_tokens(requests), strict=True)
    )
    enough = next((n for n, s in enumerate(accumulate(costs)) if s >= load * window_s), len(requests) - 1)
    first_s, last_s = requests[0].at_s, requests[enough].at_s
    speed = max(last_s - first_s, 1e-3) / window_s
    return [_faster(request, first_s, speed) for request in requests[: enough + 1]], speed


def _faster(request: ScheduledRequest, first_s: float, speed: float) -> ScheduledRequest:
    think_s = None if request.think_s is None else request.think_s / speed
    return replace(request, at_s=(request.at_s - first_s) / speed, think_s=think_s)
