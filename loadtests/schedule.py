"""When each request is to be sent, worked out before the run: seeded, absolute, the same for every config.

The same seed gives the same requests at the same times whatever the server does, so that two configs
are compared on common random numbers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from loadtests.errors import ProfileError
from loadtests.profiles import Arrivals, Group, Length, Profile

_MIN_UNIT_S = 1.0  # a shorter window than this many seconds a unit measures little
_MIN_LONG_TOKENS = 256
_MAX_PREFILL_SHARE = 0.75
_TYPICAL_BATCH = 4  # streams that share a decode step when a load share is turned into a rate


@dataclass(frozen=True, slots=True)
class Sizing:
    """What the target can do, measured once per study; sizes what a profile leaves `auto`.

    Attributes:
        prefill_tokens_per_s: reading one long prompt unchunked with nobody else there.
        decode_step_s: one decode step with a few streams.
        context_tokens: prompt and output together.
        slo_pause_s: the pause SLO the traffic is to put under stress.
    """

    prefill_tokens_per_s: float
    decode_step_s: float
    context_tokens: int
    slo_pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRequest:
    """One request to send.

    Attributes:
        at_s: from the run's start.
        prompt_seed: seeds the prompt's text; equal seeds and lengths give equal prompts.
        kind: the profile's group, or "trace".
        measured: arrives in the measured window (not in the warm-up).
        prefix: names of the prompt's blocks, from the front; equal names give equal tokens, and the last one
            may be partial.
        prefix_block_tokens: tokens per block of `prefix`.
        cancel_s: the client leaves this long after sending.
        after: id of the turn before, which this one continues.
        think_s: sent so long after the end of `after` instead of at `at_s`; None when it is not.
        retries: how often it is sent again when it is refused, each time after the server's `Retry-After`.
    """

    id: str
    at_s: float
    prompt_tokens: int
    max_tokens: int
    prompt_seed: int
    kind: str = ""
    measured: bool = True
    prefix: tuple[str, ...] = ()
    prefix_block_tokens: int = 0
    cancel_s: float | None = None
    priority: int = 0
    user: str | None = None
    session: str | None = None
    after: str | None = None
    think_s: float | None = None
    retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Requests in order of `at_s`.

    Attributes:
        duration_s: from the run's start to the end of arrivals.
        grace_s: how long requests in flight may drain after that.
        notes: what the reader of a result should know of the sizing, one line each.
    """

    name: str
    seed: int
    requests: tuple[ScheduledRequest, ...]
    duration_s: float
    grace_s: float
    long_prompt_tokens: int
    notes: tuple[str, ...] = ()

    @property
    def num_measured(self) -> int:
        return sum(request.measured for request in self.requests)


def build_schedule(profile: Profile, seed: int, sizing: Sizing) -> Schedule:
    """The requests of `profile` for one seed.

    Raises:
        ProfileError: prompt and output of a group do not fit the model's context.
    """
    return _Builder(profile, seed, sizing).build()


class _Builder:
    def __init__(self, profile: Profile, seed: int, sizing: Sizing) -> None:
        self.profile, self.seed, self.sizing = profile, seed, sizing
        self.notes: list[str] = []
        self._known_prefill_share: float | None = None
        self.auto_prompt = self._auto_prompt()
        long_s = self.auto_prompt / sizing.prefill_tokens_per_s
        self.unit_s = max(long_s, _MIN_UNIT_S) if profile.time_unit == "long_prefill" else 1.0
        self.warm_up_s = profile.warm_up * self.unit_s
        self.end_s = self.warm_up_s + profile.duration * self.unit_s

    def build(self) -> Schedule:
        requests = [request for group in self.profile.groups for request in self._group(group)]
        requests.sort(key=lambda request: (request.at_s, request.id))
        return Schedule(
            name=self.profile.name,
            seed=self.seed,
            requests=tuple(requests),
            duration_s=self.end_s,
            grace_s=self.profile.grace_s,
            long_prompt_tokens=self.profile.long_prompt_tokens or max(1, self.auto_prompt // 2),
            notes=tuple(self.notes),
        )

    def _auto_prompt(self) -> int:
        """Long enough to hurt when read whole, short enough to leave room for the answer."""
        limit = int(self.sizing.context_tokens * 0.9) - self._longest_answer()
        wanted = self.profile.long_prefill_slos * self.sizing.slo_pause_s * self.sizing.prefill_tokens_per_s
        tokens = max(1, min(max(round(wanted), _MIN_LONG_TOKENS), limit))
        seconds = tokens / self.sizing.prefill_tokens_per_s
        if seconds < self.sizing.slo_pause_s:
            self.notes.append(
                f"the longest prompt that fits the context ({tokens} tokens) is read in {seconds:.2g} s, "
                f"within the pause SLO of {self.sizing.slo_pause_s:g} s: chunking is hardly needed here"
            )
        return tokens

    def _longest_answer(self) -> int:
        lengths = [group.max_tokens for group in self.profile.groups if group.prompt_tokens.kind == "auto"]
        return max((_longest(length) for length in lengths), default=0)

    def _group(self, group: Group) -> Iterator[ScheduledRequest]:
        lengths = self._random(group, "lengths")
        for index, (at_s, room_s) in enumerate(self._arrivals(group)):
            prompt = self._prompt_tokens(group.prompt_tokens, lengths)
            request = ScheduledRequest(
                id=f"{group.name}-{index}",
                at_s=at_s,
                prompt_tokens=prompt,
                max_tokens=self._max_tokens(group.max_tokens, lengths, prompt, room_s),
                prompt_seed=lengths.getrandbits(48),
                kind=group.name,
                measured=not group.warm_up,
            )
            self._check_fits(request)
            yield request

    def _random(self, group: Group, what: str) -> random.Random:
        """A stream of its own per group and use, so that changing one leaves the others as they were."""
        return random.Random(f"{self.seed}/{self.profile.name}/{group.name}/{what}")

    def _prompt_tokens(self, length: Length, rng: random.Random) -> int:
        if length.kind == "auto":
            return max(1, round(self.auto_prompt * length.value))
        return draw(length, rng)

    def _max_tokens(self, length: Length, rng: random.Random, prompt: int, room_s: float) -> int:
        if length.kind != "auto":
            return draw(length, rng)
        decode_s = length.value * room_s * (1.0 - self._prefill_share())
        return max(1, min(round(decode_s / self.sizing.decode_step_s), self._most_answer(prompt)))

    def _prefill_share(self) -> float:
        """Of the measured window, that the device spends on prompts and not on streams' tokens."""
        if self._known_prefill_share is None:
            others = [g for g in self.profile.groups if not g.warm_up and g.max_tokens.kind != "auto"]
            tokens = sum(request.prompt_tokens for group in others for request in self._group(group))
            share = tokens / self.sizing.prefill_tokens_per_s / (self.end_s - self.warm_up_s)
            self._known_prefill_share = min(share, _MAX_PREFILL_SHARE)
        return self._known_prefill_share

    def _most_answer(self, prompt: int) -> int:
        return max(1, int(self.sizing.context_tokens * 0.9) - prompt)

    def _check_fits(self, request: ScheduledRequest) -> None:
        needed = request.prompt_tokens + request.max_tokens
        if needed > self.sizing.context_tokens:
            raise ProfileError(
                f"profile {self.profile.name}: group {request.kind} needs {needed} tokens (prompt "
                f"{request.prompt_tokens} + output {request.max_tokens}), the model's context is "
                f"{self.sizing.context_tokens}; make its prompt_tokens smaller or auto"
            )

    def _arrivals(self, group: Group) -> Iterator[tuple[float, float]]:
        """(instant, seconds left for the answer) of every request of the group."""
        start_s = 0.0 if group.warm_up else self.warm_up_s
        end_s = self.warm_up_s if group.warm_up else self.end_s
        if group.arrivals.process == "lanes":
            yield from self._lanes(group, start_s, end_s)
            return
        for offset in self._offsets(group, (end_s - start_s) / self.unit_s):
            at_s = start_s + offset * self.unit_s
            yield at_s, end_s - at_s

    def _offsets(self, group: Group, window: float) -> list[float]:
        rng, arrivals = self._random(group, "arrivals"), group.arrivals
        if arrivals.process == "at":
            offsets = [time + rng.uniform(-1, 1) * arrivals.jitter for time in arrivals.times]
        elif arrivals.process == "burst":
            offsets = list(_burst_offsets(arrivals, window, rng))
        else:
            offsets = list(_gamma_offsets(arrivals, self._rate(group), window, rng))
        return sorted(max(0.0, offset) for offset in offsets if offset < window)

    def _rate(self, group: Group) -> float:
        """Requests per unit; a load share is turned into one by what a typical request costs the device."""
        if group.arrivals.rate is not None:
            return group.arrivals.rate
        prefill_s = self._typical(group.prompt_tokens, self.auto_prompt) / self.sizing.prefill_tokens_per_s
        decode_s = self._typical(group.max_tokens, 1) * self.sizing.decode_step_s / _TYPICAL_BATCH
        assert group.arrivals.load is not None
        return group.arrivals.load * self.unit_s / (prefill_s + decode_s)

    def _typical(self, length: Length, auto: float) -> float:
        if length.kind == "auto":
            return auto * length.value
        return (length.low + length.high) / 2 if length.kind == "uniform" else length.value

    def _lanes(self, group: Group, start_s: float, end_s: float) -> Iterator[tuple[float, float]]:
        """Each lane is one stream after another; a single one when the context has room for the answer."""
        longest_s = self._lane_stream_s(group)
        for lane in range(group.arrivals.count):
            at_s = start_s + lane * group.arrivals.spread * self.unit_s
            while at_s < end_s:
                yield at_s, end_s - at_s
                at_s += longest_s

    def _lane_stream_s(self, group: Group) -> float:
        if group.max_tokens.kind == "auto":
            tokens: float = self._most_answer(_longest(group.prompt_tokens))
        else:
            tokens = self._typical(group.max_tokens, 1)
        return tokens * self.sizing.decode_step_s


def draw(length: Length, rng: random.Random) -> int:
    """One length from its distribution, which is not `auto`."""
    if length.kind == "fixed":
        return int(length.value)
    if length.kind == "uniform":
        return rng.randint(length.low, length.high)
    drawn = round(length.value * math.exp(rng.gauss(0.0, length.sigma)))
    return min(max(drawn, length.low), length.high)


def _longest(length: Length) -> int:
    return int(length.value) if length.kind in ("fixed", "auto") else length.high


def _burst_offsets(arrivals: Arrivals, window: float, rng: random.Random) -> Iterator[float]:
    for burst in range(math.ceil(window / arrivals.every)):
        for _ in range(arrivals.count):
            yield (burst + 0.25) * arrivals.every + rng.random() * arrivals.jitter


def _gamma_offsets(arrivals: Arrivals, rate: float, window: float, rng: random.Random) -> Iterator[float]:
    shape = 1.0 / arrivals.cv**2  # a gamma renewal process; cv 1 is Poisson
    offset = rng.gammavariate(shape, 1.0 / (rate * shape))
    while offset < window:
        yield offset
        offset += rng.gammavariate(shape, 1.0 / (rate * shape))
