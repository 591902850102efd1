"""The requests that a profile offers to one target."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from engine.core.slo import SloClass
from loadtests.errors import ProfileError
from loadtests.traffic.draws import draw, longest, mean, num_expected, offsets
from loadtests.traffic.profile import ClassTarget, Group, Length, Profile
from loadtests.traffic.schedule import Schedule, ScheduledRequest, Sizing, uncached_tokens

_MIN_UNIT_S = 1.0  # a shorter window than this many seconds a unit measures little
_MIN_LONG_TOKENS = 256
_MAX_PREFILL_SHARE = 0.75
_MOST_REQUESTS = 1_000_000  # of a group in one run; each is kept in memory with its prompt
_BLOCK_TOKENS = 32  # of prompts that begin alike


def build_schedule(profile: Profile, seed: int, sizing: Sizing) -> Schedule:
    """The requests of a profile's groups for one seed; one that replays a trace has none.

    Raises:
        ProfileError: prompt and output of a group do not fit the model's context; or there are more requests
            than a run plays.
    """
    return _Builder(profile, seed, sizing).build()


def long_prompt(profile: Profile, sizing: Sizing) -> int:
    """Tokens of an `auto` prompt, context permitting."""
    wanted = profile.long_prefill_slos * sizing.slo_pause_s * sizing.prefill_tokens_per_s
    return max(round(wanted), _MIN_LONG_TOKENS)


def unit_s(profile: Profile, sizing: Sizing, long_tokens: int | None = None) -> float:
    """Seconds of the profile's time unit.

    Args:
        long_tokens: of an `auto` prompt that was shortened to fit the context.
    """
    if profile.time_unit != "long_prefill":
        return 1.0
    tokens = long_prompt(profile, sizing) if long_tokens is None else long_tokens
    return max(tokens / sizing.prefill_tokens_per_s, _MIN_UNIT_S)


def slo_class(target: ClassTarget, unit_s: float) -> SloClass:
    """A class with its target in seconds."""
    scale = 1.0 if target.in_seconds else unit_s
    return SloClass(target.name, None if target.ttft is None else target.ttft * scale, target.pause_s)


class _Builder:
    def __init__(self, profile: Profile, seed: int, sizing: Sizing) -> None:
        self.profile, self.seed, self.sizing = profile, seed, sizing
        self.notes: list[str] = []
        self._known_prefill_share: float | None = None
        self.auto_prompt = self._auto_prompt()
        self.unit_s = unit_s(profile, sizing, self.auto_prompt)
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
            long_prompt_tokens=max(1, int(self._mean(self.profile.long_prompt_tokens))),
            classes=tuple(slo_class(target, self.unit_s) for target in self.profile.classes),
            notes=tuple(self.notes),
        )

    def _auto_prompt(self) -> int:
        """Long enough to hurt when read whole, short enough to leave room for the answer."""
        limit = self.sizing.usable_context_tokens - self._longest_answer()
        tokens = max(1, min(long_prompt(self.profile, self.sizing), limit))
        seconds = tokens / self.sizing.prefill_tokens_per_s
        if seconds < self.sizing.slo_pause_s:
            self.notes.append(
                f"the longest prompt that fits the context ({tokens} tokens) is read in {seconds:.2g} s, "
                f"within the pause SLO of {self.sizing.slo_pause_s:g} s: chunking is hardly needed here"
            )
        return tokens

    def _longest_answer(self) -> int:
        lengths = [group.max_tokens for group in self.profile.groups if group.prompt_tokens.kind == "auto"]
        return max((longest(length) for length in lengths), default=0)

    # -- requests ------------------------------------------------------------------------------------

    def _group(self, group: Group) -> Iterator[ScheduledRequest]:
        lengths = self._random(group, "lengths")
        for index, (at_s, room_s) in enumerate(self._arrivals(group)):
            prompt = self._tokens(group.prompt_tokens, lengths)
            first = ScheduledRequest(
                id=f"{group.name}-{index}",
                at_s=at_s,
                prompt_tokens=prompt,
                max_tokens=self._max_tokens(group.max_tokens, lengths, prompt, room_s),
                prompt_seed=lengths.getrandbits(48),
                kind=group.name,
                slo_class=group.slo_class,
                measured=not group.warm_up,
                retries=group.retries,
            )
            self._check_fits(first)
            yield from self._session(first, group, lengths)

    def _session(
        self, first: ScheduledRequest, group: Group, lengths: random.Random
    ) -> Iterator[ScheduledRequest]:
        """The first request and those that continue it, as long as window and context last."""
        num_turns = self._tokens(group.turns, lengths)
        turn = self._begun_alike(first, group, num_turns > 1)
        yield turn
        for number in range(1, num_turns):
            turn = self._next_turn(turn, group, lengths, f"{first.id}.{number}")
            most = self.sizing.usable_context_tokens
            if turn.at_s >= self._window(group)[1] or turn.prompt_tokens + turn.max_tokens > most:
                return
            yield self._begun_alike(turn, group, True)

    def _next_turn(
        self, before: ScheduledRequest, group: Group, lengths: random.Random, name: str
    ) -> ScheduledRequest:
        new, think_s = self._tokens(group.new_tokens, lengths), group.think * self.unit_s
        prompt = before.prompt_tokens + before.max_tokens + new
        answered_s = before.at_s + self.sizing.seconds(new, before.max_tokens)
        return replace(
            before,
            id=name,
            at_s=answered_s + think_s,
            prompt_tokens=prompt,
            max_tokens=self._max_tokens(group.max_tokens, lengths, prompt, self.end_s - answered_s),
            after=before.id,
            think_s=think_s,
        )

    def _begun_alike(self, request: ScheduledRequest, group: Group, in_session: bool) -> ScheduledRequest:
        """With names for the blocks that its prompt has in common with others of its group or session."""
        shared = self._shared_tokens(group) // _BLOCK_TOKENS
        names = [f"{group.name}/{block}" for block in range(shared)]
        if in_session:
            session = request.session or request.id
            blocks = range(shared, -(-request.prompt_tokens // _BLOCK_TOKENS))
            names += [f"{session}/{block}" for block in blocks]
            request = replace(request, session=session)
        return replace(request, prefix=tuple(names), prefix_block_tokens=_BLOCK_TOKENS if names else 0)

    def _random(self, group: Group, what: str) -> random.Random:
        """A stream of its own per group and use, so that changing one leaves the others as they were."""
        return random.Random(f"{self.seed}/{self.profile.name}/{group.name}/{what}")

    def _tokens(self, length: Length, rng: random.Random) -> int:
        if length.kind == "auto":
            return max(1, round(self.auto_prompt * length.value))
        return draw(length, rng)

    def _shared_tokens(self, group: Group) -> int:
        return 0 if group.shared_tokens is None else round(self._mean(group.shared_tokens))

    def _max_tokens(self, length: Length, rng: random.Random, prompt: int, room_s: float) -> int:
        if length.kind != "auto":
            return draw(length, rng)
        decode_s = length.value * room_s * (1.0 - self._prefill_share())
        return max(1, min(round(decode_s / self.sizing.decode_step_s), self._most_answer(prompt)))

    def _prefill_share(self) -> float:
        """Of the measured window, that the device spends on prompts and not on streams' tokens."""
        if self._known_prefill_share is None:
            others = [g for g in self.profile.groups if not g.warm_up and g.max_tokens.kind != "auto"]
            tokens = sum(uncached_tokens(request for group in others for request in self._group(group)))
            share = tokens / self.sizing.prefill_tokens_per_s / (self.end_s - self.warm_up_s)
            self._known_prefill_share = min(share, _MAX_PREFILL_SHARE)
        return self._known_prefill_share

    def _most_answer(self, prompt: int) -> int:
        return max(1, self.sizing.usable_context_tokens - prompt)

    def _check_fits(self, request: ScheduledRequest) -> None:
        needed = request.prompt_tokens + request.max_tokens
        if needed > self.sizing.context_tokens:
            raise ProfileError(
                f"profile {self.profile.name}: group {request.kind} needs {needed} tokens (prompt "
                f"{request.prompt_tokens} + output {request.max_tokens}), the model's context is "
                f"{self.sizing.context_tokens}; make its prompt_tokens smaller or auto"
            )

    # -- arrivals ------------------------------------------------------------------------------------

    def _check_playable(self, group: Group, num_requests: float) -> None:
        if num_requests > _MOST_REQUESTS:
            raise ProfileError(
                f"profile {self.profile.name}: group {group.name} sends about {num_requests:,.0f} requests, "
                f"and a run plays {_MOST_REQUESTS:,} at most; make its arrivals fewer or the duration shorter"
            )

    def _window(self, group: Group) -> tuple[float, float]:
        return (0.0, self.warm_up_s) if group.warm_up else (self.warm_up_s, self.end_s)

    def _arrivals(self, group: Group) -> Iterator[tuple[float, float]]:
        """(instant, seconds left for the answer) of every request of the group, or first turn."""
        start_s, end_s = self._window(group)
        if group.arrivals.process == "lanes":
            yield from self._lanes(group, start_s, end_s)
            return
        window, rng = (end_s - start_s) / self.unit_s, self._random(group, "arrivals")
        rate = self._rate(group)
        self._check_playable(group, num_expected(group.arrivals, rate, window))
        for offset in offsets(group.arrivals, rate, window, rng):
            at_s = start_s + offset * self.unit_s
            yield at_s, end_s - at_s

    def _rate(self, group: Group) -> float:
        """Requests per unit; a load share is turned into one by what one costs the device on average."""
        if group.arrivals.load is None:
            return group.arrivals.rate or 0.0
        output, turns = self._mean(group.max_tokens), self._mean(group.turns)
        new = (turns - 1) * (self._mean(group.new_tokens) + output)
        prompt = max(0.0, self._mean(group.prompt_tokens) - self._shared_tokens(group))
        return group.arrivals.load * self.unit_s / self.sizing.seconds(prompt + new, turns * output)

    def _mean(self, length: Length) -> float:
        return self.auto_prompt * length.value if length.kind == "auto" else mean(length)

    def _lanes(self, group: Group, start_s: float, end_s: float) -> Iterator[tuple[float, float]]:
        """Each lane is one stream after another; a single one when the context has room for the answer."""
        longest_s = self._lane_stream_s(group)
        self._check_playable(group, group.arrivals.count * max(1.0, (end_s - start_s) / longest_s))
        for lane in range(group.arrivals.count):
            at_s = start_s + lane * group.arrivals.spread * self.unit_s
            while at_s < end_s:
                yield at_s, end_s - at_s
                at_s += longest_s

    def _lane_stream_s(self, group: Group) -> float:
        if group.max_tokens.kind == "auto":
            tokens: float = self._most_answer(longest(group.prompt_tokens))
        else:
            tokens = self._mean(group.max_tokens)
        return tokens * self.sizing.decode_step_s
