"""Putting a config on a live server, watching its streams, and taking it back when the SLO breaks.

What is watched is on loan until it is judged: when this process is killed, the server goes back by itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from engine.core.config import SchedulerConfig
from tuner.errors import EngineError, Interrupted, StaleConfigError
from tuner.server.config_setter import LEASE_S, RENEW_EVERY_S
from tuner.server.engine_client import EngineClient, LiveConfig
from tuner.verdict import Decision, Evidence

_POLL_S = 0.5
_IN_TIME = f"by itself, within {LEASE_S:g} s or at a restart"
_AT_ONCE_S = 0.001  # of a loan that is given up


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a change.

    Attributes:
        before, now: the configs before the change (of what was on loan, the server's own) and at the end.
        generation: the change's own.
        decision: None when nobody watched.
        overtaken: somebody else changed the config during the watch, or the server did because the watch was
            held up; nothing was judged any more.
    """

    before: LiveConfig
    now: LiveConfig
    generation: int
    decision: Decision | None
    evidence: Evidence
    overtaken: bool = False

    @property
    def verdict(self) -> str:
        """As stored: `applied`, `kept`, `taken back`, `undecided`, `no data` or `overtaken`."""
        if self.overtaken:
            return "overtaken"
        if self.decision is None:
            return "applied"
        if self.decision is Decision.UNDECIDED:
            return "undecided" if self.evidence.num_streams else "no data"
        return self.decision.value


class Watch:
    """Follows the streams of one generation.

    Args:
        clock, wait: real time, unless a test says otherwise.
    """

    def __init__(
        self,
        client: EngineClient,
        slo_pause_s: float,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._slo_pause_s = slo_pause_s
        self._clock = clock
        self._wait = wait

    def apply(
        self,
        config: SchedulerConfig,
        watch_s: float,
        why: str,
        on_evidence: Callable[[Evidence], None] = lambda evidence: None,
    ) -> Applied:
        """Puts the config in force and judges it.

        Raises:
            StaleConfigError: somebody else was faster.
            EngineError: the server does not answer or refuses.
        """
        before = self._client.settled_config()
        after = int(self._client.stats(1.0).get("last_request_seq", 0))
        if not watch_s:
            now = self._client.put_config(config, before.generation, why, keep=True)
            return Applied(before, now, now.generation, None, Evidence())
        now = self._client.put_config(config, before.generation, why, lease_s=LEASE_S)
        with self._unjudged(now.generation):
            evidence, overtaken = self._follow(now.generation, after, watch_s, on_evidence)
        if overtaken:
            return Applied(before, self._client.config(), now.generation, None, evidence, overtaken=True)
        return self._conclude(before, now, evidence)

    @contextlib.contextmanager
    def _unjudged(self, generation: int) -> Iterator[None]:
        """Whatever ends the watch early gives the config up, and says so."""
        unjudged = f"generation {generation} was not judged"
        try:
            yield
        except Interrupted as error:
            error.hint = f"{unjudged}; {self._give_up(generation)}"
            raise
        except EngineError as error:
            raise EngineError(f"{error}; {unjudged}, and the server goes back {_IN_TIME}") from error

    def _give_up(self, generation: int) -> str:
        """What becomes of a config on loan that nobody wants any more, in words."""
        with contextlib.suppress(EngineError):
            if self._client.renew_lease(generation, _AT_ONCE_S):
                return f"{self._client.url} is back at the config before it"
        return f"{self._client.url} goes back to the config before it {_IN_TIME}"

    def _conclude(self, before: LiveConfig, now: LiveConfig, evidence: Evidence) -> Applied:
        generation, decision = now.generation, evidence.decision
        if decision is Decision.TAKE_BACK:
            try:
                now = self._take_back(before, now, f"{evidence.num_bad} streams paused too long")
            except StaleConfigError:
                return Applied(before, self._client.config(), generation, None, evidence, overtaken=True)
            return Applied(before, now, generation, decision, evidence)
        self._client.keep(generation)
        now = self._client.config()
        overtaken = now.generation != generation
        return Applied(before, now, generation, decision, evidence, overtaken)

    def _take_back(self, before: LiveConfig, judged: LiveConfig, why: str) -> LiveConfig:
        """What was in force before is in force again, also when nobody had kept it; what had been kept
        before is, when the same config was in force already.
        """
        now = self._client.roll_back(judged.generation, why)
        if before.config not in (now.config, judged.config):
            now = self._client.put_config(before.config, now.generation, why)
        return now

    def _follow(
        self, generation: int, after: int, watch_s: float, on_evidence: Callable[[Evidence], None]
    ) -> tuple[Evidence, bool]:
        """Counts streams until they decide or the time is up; whether somebody else changed the config."""
        evidence, until_s, renew_at_s = Evidence(), self._clock() + watch_s, self._clock() + RENEW_EVERY_S
        while evidence.decision is Decision.UNDECIDED and self._clock() < until_s:
            self._wait(_POLL_S)
            if self._clock() >= renew_at_s:
                self._client.renew_lease(generation, LEASE_S)
                renew_at_s = self._clock() + RENEW_EVERY_S
            for request in self._client.ended_requests(after):
                after = max(after, int(request["seq"]))
                evidence = self._count(evidence, request, generation)
            on_evidence(evidence)
            if self._client.stats(1.0).get("generation") != generation:
                return evidence, True
        return evidence, False

    def _count(self, evidence: Evidence, request: dict[str, Any], generation: int) -> Evidence:
        """Streams that saw another config too prove nothing about this one."""
        whole = request.get("generation") == generation == request.get("last_generation")
        pause = request.get("worst_pause_s")
        if not whole or pause is None or evidence.decision is not Decision.UNDECIDED:
            return evidence
        return evidence.add(float(pause), self._slo_pause_s)
