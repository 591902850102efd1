"""The port behind which a config is tried out: on a live server, or in the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.core.config import SchedulerConfig
from engine.core.events import StepRecord
from engine.core.records import RequestRecord
from engine.core.report import TrialSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one run of one config came to.

    Attributes:
        summary: None when the run crashed or the load client failed.
        long_prompt_tokens: uncached prompt tokens from which a record counts as long.
        steps: what the engine did meanwhile, on its own clock; empty when it does not say.
        aborted: stopped early because a pause was beyond the limit; the worst pause is a bound and the
            TTFT says nothing.
        problems: why the run must not be scored (the client spoiled it); empty when it may.
        mend: what to change so that it can be measured; empty without problems.
        crash: what went wrong with the server; None when nothing did.
        generation: the config generation it ran under; None in the simulator.
    """

    summary: TrialSummary | None
    long_prompt_tokens: int = 1
    records: tuple[RequestRecord, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    aborted: bool = False
    problems: tuple[str, ...] = ()
    mend: str = ""
    crash: str | None = None
    generation: int | None = None
    elapsed_s: float = 0.0


class Evaluator(Protocol):
    """Runs a profile's traffic against a config.

    The same seed is the same request set: lengths, prompts and arrival times.
    """

    def evaluate(self, config: SchedulerConfig, seed: int, abort_pause_s: float | None) -> Measurement:
        """Tries the config once.

        A server that breaks down under the config is a value (`Measurement.crash`).

        Args:
            abort_pause_s: stop as soon as a stream has paused longer than this.

        Raises:
            TunerError: the run could not be made at all, and no other config's can.
        """
