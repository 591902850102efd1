"""Reads a profile from plain values, as YAML gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtests.traffic.fields import REQUIRED, Fields
from loadtests.traffic.profile import Arrivals, ClassTarget, Group, Length, Profile, TraceSource

_MOST_TOKENS = 1 << 20  # longer than any context
_WIDEST = 10.0  # of a lognormal: beyond it numbers overflow


def parse_profile(values: Any, source: str) -> Profile:
    """A profile from plain values.

    Raises:
        ProfileError: a field is missing, unknown or out of range; names `source` and the field.
    """
    fields = Fields(values, f"profile {source}")
    unit = fields.choice("time_unit", ("s", "long_prefill"), "s")
    classes = _parse_classes(fields)
    named = tuple(one.name for one in classes)
    trace = fields.take("trace", None)
    warm_up, duration = fields.number("warm_up", 0.0, minimum=0.0), fields.number("duration", minimum=0.001)
    if trace is not None and warm_up:
        fields.fail("warm_up", "left out where a trace is replayed, all of which is measured", warm_up)
    profile = Profile(
        name=fields.text("name", Path(source).stem),
        description=fields.text("description", ""),
        time_unit=unit,
        warm_up=warm_up,
        duration=duration,
        grace_s=fields.number("grace_s", 120.0, minimum=0.0),
        long_prompt_tokens=_parse_threshold(fields),
        long_prefill_slos=fields.number("long_prefill_slos", 6.0, minimum=0.1),
        groups=_parse_groups(fields, named) if trace is None else (),
        trace=None if trace is None else _parse_trace(fields.inner("trace", trace), named),
        classes=classes,
    )
    fields.finish()
    _check_windows(profile, fields)
    return profile


def _check_windows(profile: Profile, fields: Fields) -> None:
    """Refuses requests that would come after the window of their group, and so never."""
    for group in profile.groups:
        name, end = ("warm_up", profile.warm_up) if group.warm_up else ("duration", profile.duration)
        latest = max(group.arrivals.times, default=0.0) + group.arrivals.jitter
        if group.arrivals.process == "at" and latest >= end:
            wanted = f"before the end of {name} ({end:g}), jitter included"
            fields.fail(f"groups.{group.name}.arrivals.times", wanted, list(group.arrivals.times))
        if group.warm_up and not end:
            fields.fail(name, f"above 0 for the group {group.name}", end)


def _parse_threshold(fields: Fields) -> Length:
    """Half of an `auto` prompt unless said otherwise."""
    length = _parse_length(fields, "long_prompt_tokens", {"auto": 0.5})
    if length.kind not in ("fixed", "auto"):
        fields.fail("long_prompt_tokens", "auto, a whole number or {auto: share}", length.kind)
    return Length("auto", 0.5) if length == Length("auto") else length


def _parse_classes(fields: Fields) -> tuple[ClassTarget, ...]:
    classes = fields.take("classes", {})
    if not isinstance(classes, Mapping):
        fields.fail("classes", "a mapping of names to targets", classes)
    return tuple(
        _parse_class(str(name), fields.inner(f"classes.{name}", values)) for name, values in classes.items()
    )


def _parse_class(name: str, fields: Fields) -> ClassTarget:
    ttft, in_seconds = fields.time("ttft")
    pause, pause_in_seconds = fields.time("pause")
    if pause is not None and not pause_in_seconds:
        fields.fail("pause", "a duration with a unit, like 500ms", pause)
    fields.finish()
    return ClassTarget(name, ttft, in_seconds, pause)


def _parse_class_name(fields: Fields, classes: Sequence[str], is_measured: bool = True) -> str:
    """Empty in a profile without classes; in one with classes every measured request has one."""
    is_needed = classes and is_measured
    return fields.choice("class", classes) if is_needed or "class" in fields else ""


def _parse_trace(fields: Fields, classes: Sequence[str]) -> TraceSource:
    shrink = fields.take("shrink", "auto")
    trace = TraceSource(
        file=fields.text("file"),
        mode="session" if fields.choice("mode", ("open", "session"), "open") == "session" else "open",
        start_s=fields.number("start_s", 0.0, minimum=0.0),
        load=fields.number("load", 0.6, minimum=1e-6),
        shrink=None if shrink == "auto" else fields.as_whole("shrink", shrink, 1),
        max_idle_s=fields.optional("max_idle_s", 0.0),
        slo_class=_parse_class_name(fields, classes),
    )
    fields.finish()
    return trace


def _parse_groups(fields: Fields, classes: Sequence[str]) -> tuple[Group, ...]:
    groups = fields.take("groups")
    if not isinstance(groups, Mapping) or not groups:
        fields.fail("groups", "a mapping of at least one group", groups)
    return tuple(
        _parse_group(str(name), fields.inner(f"groups.{name}", values), classes)
        for name, values in groups.items()
    )


def _parse_group(name: str, fields: Fields, classes: Sequence[str]) -> Group:
    warm_up = fields.flag("warm_up", False)
    group = Group(
        name=name,
        prompt_tokens=_parse_length(fields, "prompt_tokens"),
        max_tokens=_parse_length(fields, "max_tokens"),
        arrivals=_parse_arrivals(fields.inner("arrivals", fields.take("arrivals"))),
        slo_class=_parse_class_name(fields, classes, not warm_up),
        shared_tokens=_parse_length(fields, "shared_tokens") if "shared_tokens" in fields else None,
        turns=_parse_length(fields, "turns", 1),
        new_tokens=_parse_length(fields, "new_tokens", 1),
        think=fields.number("think", 0.0, minimum=0.0),
        retries=fields.whole("retries", 0, minimum=0),
        warm_up=warm_up,
    )
    fields.finish()
    return group


def _parse_length(outer: Fields, name: str, default: Any = REQUIRED) -> Length:
    value = outer.take(name, default)
    if value == "auto":
        return Length("auto")
    if not isinstance(value, Mapping):
        return Length("fixed", outer.as_whole(name, value, 1))
    fields = outer.inner(name, value)
    kind = fields.only_key(("auto", "uniform", "lognormal"))
    return _LENGTHS[kind](fields)


def _parse_auto(fields: Fields) -> Length:
    return Length("auto", fields.number("auto", minimum=0.001))


def _parse_uniform(fields: Fields) -> Length:
    low, high = fields.numbers("uniform", 2)
    if not 1 <= low <= high or low % 1 or high % 1:
        fields.fail("uniform", "[low, high], whole numbers with 1 <= low <= high", [low, high])
    return Length("uniform", low=int(low), high=int(high))


def _parse_lognormal(fields: Fields) -> Length:
    inner = fields.inner("lognormal", fields.take("lognormal"))
    length = Length(
        "lognormal",
        value=inner.number("median", minimum=1.0),
        sigma=inner.number("sigma", minimum=0.0),
        low=inner.whole("min", 1, minimum=1),
        high=inner.whole("max", 1 << 20, minimum=1),
    )
    if length.value > _MOST_TOKENS:
        inner.fail("median", f"a number up to {_MOST_TOKENS:,}", length.value)
    if length.sigma > _WIDEST:
        inner.fail("sigma", f"a number up to {_WIDEST:g}", length.sigma)
    if length.low > length.high:
        inner.fail("max", f"a whole number from min ({length.low})", length.high)
    inner.finish()
    return length


_LENGTHS = {"auto": _parse_auto, "uniform": _parse_uniform, "lognormal": _parse_lognormal}


def _parse_arrivals(fields: Fields) -> Arrivals:
    process = fields.choice("process", tuple(_ARRIVALS))
    arrivals = _ARRIVALS[process](fields)
    fields.finish()
    return arrivals


def _parse_at(fields: Fields) -> Arrivals:
    times = fields.numbers("times")
    if min(times) < 0:
        fields.fail("times", "numbers from 0", list(times))
    return Arrivals("at", times=times, jitter=fields.number("jitter", 0.0, minimum=0.0))


def _parse_lanes(fields: Fields) -> Arrivals:
    return Arrivals(
        "lanes", count=fields.whole("count", minimum=1), spread=fields.number("spread", 0.0, minimum=0.0)
    )


def _parse_random(fields: Fields) -> Arrivals:
    rate, load = fields.optional("rate", 1e-6), fields.optional("load", 1e-6)
    if (rate is None) == (load is None):
        fields.fail("rate", "given, or else load (one of the two)", {"rate": rate, "load": load})
    return Arrivals("gamma", rate=rate, load=load, cv=fields.number("cv", 1.0, minimum=0.01))


def _parse_burst(fields: Fields) -> Arrivals:
    return Arrivals(
        "burst",
        count=fields.whole("count", minimum=1),
        every=fields.number("every", minimum=0.001),
        jitter=fields.number("jitter", 0.0, minimum=0.0),
    )


_ARRIVALS = {
    "at": _parse_at,
    "lanes": _parse_lanes,
    "poisson": _parse_random,
    "gamma": _parse_random,
    "burst": _parse_burst,
}
