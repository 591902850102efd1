"""Traffic profiles: what arrives, how long it is, and when, as data.

A profile is a YAML file; `loadtests/profiles/` holds the named ones. Its times are counted in `time_unit`:
seconds, or `long_prefill`, the time the target needs for one long prompt unchunked, so that one profile
fits a laptop's CPU and a data-centre GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadtests.errors import ProfileError
from loadtests.fields import Fields

PROFILE_DIR = Path(__file__).parent / "profiles"


@dataclass(frozen=True, slots=True)
class Length:
    """A number of tokens, drawn for each request.

    Attributes:
        kind: `fixed` (`value`), `auto` (`value` × what the sizing gives), `uniform` (`low` … `high`) or
            `lognormal` (median `value`, `sigma`, cut to `low` … `high`).
    """

    kind: str
    value: float = 1.0
    sigma: float = 0.0
    low: int = 1
    high: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When a group's requests arrive, in time units from the start of the measured window.

    Attributes:
        process: `at` (the given `times`, each moved by up to ± `jitter`), `lanes` (`count` streams at a
            time, back to back over the window, started `spread` apart), `poisson` or `gamma` (`rate` per
            unit, or a share `load` of what the target carries; gamma with coefficient of variation `cv`),
            `burst` (`count` at once every `every`).
    """

    process: str
    times: tuple[float, ...] = ()
    jitter: float = 0.0
    count: int = 1
    spread: float = 0.0
    rate: float | None = None
    load: float | None = None
    cv: float = 1.0
    every: float = 1.0


@dataclass(frozen=True, slots=True)
class Group:
    """Requests of one kind.

    Attributes:
        warm_up: arrives in the warm-up instead of the measured window.
    """

    name: str
    prompt_tokens: Length
    max_tokens: Length
    arrivals: Arrivals
    warm_up: bool = False


@dataclass(frozen=True, slots=True)
class Profile:
    """Traffic to offer.

    Attributes:
        warm_up, duration: in `time_unit`; the measured window is `duration` long and follows the warm-up.
        grace_s: how long requests in flight may drain after the last arrival.
        long_prompt_tokens: uncached prompt tokens from which a request counts as long; None = half of
            an `auto` prompt.
        long_prefill_slos: an `auto` prompt takes this many times the pause SLO to read unchunked.
    """

    name: str
    description: str
    time_unit: str
    warm_up: float
    duration: float
    grace_s: float
    long_prompt_tokens: int | None
    long_prefill_slos: float
    groups: tuple[Group, ...]


def profile_names() -> list[str]:
    """The named profiles that come along."""
    return sorted(path.stem for path in PROFILE_DIR.glob("*.yaml"))


def load_profile(name_or_path: str) -> Profile:
    """A named profile, or the one in a file.

    Raises:
        ProfileError: no such profile or file, not YAML, or a field at fault; names file and field.
    """
    path = Path(name_or_path)
    if path.suffix not in (".yaml", ".yml"):
        path = PROFILE_DIR / f"{name_or_path}.yaml"
        if name_or_path not in profile_names():
            known = ", ".join(profile_names())
            raise ProfileError(f"no profile {name_or_path!r}; there are {known}, or give a .yaml file")
    return parse_profile(_read_yaml(path), str(path.name if path.parent == PROFILE_DIR else path))


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"cannot read profile {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise ProfileError(f"profile {path}{line} is not YAML: {getattr(error, 'problem', error)}") from error


def parse_profile(values: Any, source: str) -> Profile:
    """A profile from plain values.

    Raises:
        ProfileError: a field is missing, unknown or out of range; names `source` and the field.
    """
    fields = Fields(values, f"profile {source}")
    unit = fields.choice("time_unit", ("s", "long_prefill"), "s")
    threshold = fields.take("long_prompt_tokens", "auto")
    profile = Profile(
        name=fields.text("name", Path(source).stem),
        description=fields.text("description", ""),
        time_unit=unit,
        warm_up=fields.number("warm_up", 0.0, minimum=0.0),
        duration=fields.number("duration", minimum=0.001),
        grace_s=fields.number("grace_s", 120.0, minimum=0.0),
        long_prompt_tokens=None
        if threshold == "auto"
        else fields.as_whole("long_prompt_tokens", threshold, 1),
        long_prefill_slos=fields.number("long_prefill_slos", 6.0, minimum=0.1),
        groups=_parse_groups(fields),
    )
    fields.finish()
    return profile


def _parse_groups(fields: Fields) -> tuple[Group, ...]:
    groups = fields.take("groups")
    if not isinstance(groups, Mapping) or not groups:
        fields.fail("groups", "a mapping of at least one group", groups)
    return tuple(
        _parse_group(str(name), fields.inner(f"groups.{name}", values)) for name, values in groups.items()
    )


def _parse_group(name: str, fields: Fields) -> Group:
    group = Group(
        name=name,
        prompt_tokens=_parse_length(fields, "prompt_tokens"),
        max_tokens=_parse_length(fields, "max_tokens"),
        arrivals=_parse_arrivals(fields.inner("arrivals", fields.take("arrivals"))),
        warm_up=fields.flag("warm_up", False),
    )
    fields.finish()
    return group


def _parse_length(outer: Fields, name: str) -> Length:
    value = outer.take(name)
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
    if not 1 <= low <= high:
        fields.fail("uniform", "[low, high] with 1 <= low <= high", [low, high])
    return Length("uniform", low=int(low), high=int(high))


def _parse_lognormal(fields: Fields) -> Length:
    inner = fields.inner("lognormal", fields.take("lognormal"))
    length = Length(
        "lognormal",
        value=inner.number("median", minimum=1.0),
        sigma=inner.number("sigma", minimum=0.0),
        low=int(inner.number("min", 1.0, minimum=1.0)),
        high=int(inner.number("max", float(1 << 20), minimum=1.0)),
    )
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
