"""What a traffic profile says: what arrives, how long it is, and when. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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


ONE = Length("fixed", 1.0)


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
    """Requests of one kind, or sessions of them.

    Attributes:
        prompt_tokens: of a session its first prompt's.
        slo_class: of the profile's classes; empty when it has none.
        shared_tokens: with which every prompt of the group begins alike (a system prompt).
        turns: requests of a session.
        new_tokens: that a later turn adds to the prompt and the answer before it.
        think: from an answer's end to the next turn, in the profile's time unit.
        retries: how often a refused request is sent again, after the server's `Retry-After`.
        warm_up: arrives in the warm-up instead of the measured window.
    """

    name: str
    prompt_tokens: Length
    max_tokens: Length
    arrivals: Arrivals
    slo_class: str = ""
    shared_tokens: Length | None = None
    turns: Length = ONE
    new_tokens: Length = ONE
    think: float = 0.0
    retries: int = 0
    warm_up: bool = False


@dataclass(frozen=True, slots=True)
class ClassTarget:
    """A class of requests, and what they are promised.

    Attributes:
        ttft: in `time_unit`, or in seconds when `in_seconds`; None promises nothing.
        pause_s: None is the run's own limit.
    """

    name: str
    ttft: float | None = None
    in_seconds: bool = False
    pause_s: float | None = None


@dataclass(frozen=True, slots=True)
class TraceSource:
    """A recorded trace that a profile replays instead of groups.

    Attributes:
        file: its name in the folder of traces, or a path.
        mode: `open` or `session`.
        start_s: of the trace, skipped.
        load: the share of what the target carries; decides how fast the trace is replayed.
        shrink: divides every length; None divides them so that one prompt in ten is as long as an `auto`
            prompt or longer.
        max_idle_s: longer silences are shortened to this.
    """

    file: str
    mode: Literal["open", "session"] = "open"
    start_s: float = 0.0
    load: float = 0.6
    shrink: int | None = None
    max_idle_s: float | None = None
    slo_class: str = ""


@dataclass(frozen=True, slots=True)
class Profile:
    """Traffic to offer: groups of requests, or a trace.

    Attributes:
        warm_up, duration: in `time_unit`; the measured window is `duration` long and follows the warm-up.
        grace_s: how long requests in flight may drain after the last arrival.
        long_prompt_tokens: uncached prompt tokens from which a request counts as long; `auto` is that share
            of an `auto` prompt, or, where a trace is replayed, what a tenth of its prompts have.
        long_prefill_slos: an `auto` prompt takes this many times the pause SLO to read unchunked.
    """

    name: str
    description: str
    time_unit: str
    warm_up: float
    duration: float
    grace_s: float
    long_prompt_tokens: Length
    long_prefill_slos: float
    groups: tuple[Group, ...] = ()
    trace: TraceSource | None = None
    classes: tuple[ClassTarget, ...] = ()
