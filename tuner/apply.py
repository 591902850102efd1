"""Putting a config on a live server, watching its streams, and taking it back when the SLO breaks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from engine.core.config import SchedulerConfig
from tuner.errors import EngineError, Interrupted, StaleConfigError
from tuner.server.engine_client import EngineClient, LiveConfig
from tuner.verdict import Decision, Evidence

_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a change.

    Attributes:
        before, now: the configs before the change and at the end.
        generation: the change's own.
        decision: None when nobody watched.
        overtaken: somebody else changed the config during the watch; nothing was judged any more.
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
        before = self._client.config()
        after = int(self._client.stats(1.0).get("last_request_seq", 0))
        now = self._client.put_config(config, before.generation, why, keep=not watch_s)
        if not watch_s:
            return Applied(before, now, now.generation, None, Evidence())
        with self._unjudged(now.generation):
            evidence, overtaken = self._follow(now.generation, after, watch_s, on_evidence)
        if overtaken:
            return Applied(before, self._client.config(), now.generation, None, evidence, overtaken=True)
        return self._conclude(before, now, evidence)

    @contextlib.contextmanager
    def _unjudged(self, generation: int) -> Iterator[None]:
        """Whatever ends the watch early says what is in force now."""
        url = self._client.url
        try:
            yield
        except Interrupted as error:
            error.hint = (
                f"generation {generation} is in force on {url}, and not judged; "
                f"tuner rollback --to {url} takes it back"
            )
            raise
        except EngineError as error:
            left = f"generation {generation} was not judged, and a restart of the server does without it"
            raise EngineError(f"{error}; {left}") from error

    def _conclude(self, before: LiveConfig, now: LiveConfig, evidence: Evidence) -> Applied:
        generation, decision = now.generation, evidence.decision
        if decision is Decision.TAKE_BACK:
            try:
                now = self._take_back(before, now, f"{evidence.num_bad} streams paused too long")
            except StaleConfigError:
                return Applied(before, self._client.config(), generation, None, evidence, overtaken=True)
        else:
            self._client.keep(generation)
        return Applied(before, now, generation, decision, evidence)

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
        evidence, until_s = Evidence(), self._clock() + watch_s
        while evidence.decision is Decision.UNDECIDED and self._clock() < until_s:
            self._wait(_POLL_S)
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
