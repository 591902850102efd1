"""Trying a config on a live server, through the endpoint and with the payload that `apply` uses."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Protocol

from engine.core.config import SchedulerConfig
from engine.core.events import StepRecord
from engine.core.report import summarise
from engine.core.slo import Slo
from loadtests.client.target import Target
from loadtests.errors import LoadRunError, TargetError
from loadtests.run import LoadResult, Progress, run_load
from loadtests.synthesis.prompts import PromptBook
from loadtests.traffic.schedule import Schedule
from tuner.errors import EngineError, StaleConfigError
from tuner.evaluation.evaluators import Measurement
from tuner.server.config_setter import ConfigSetter
from tuner.server.engine_client import EngineClient

_IDLE_WITHIN_S = 30.0


class Restartable(Protocol):
    """A server that can be brought back when a config has broken it."""

    @property
    def alive(self) -> bool: ...

    def restart(self) -> None: ...


class LiveServer:
    """A server to tune, and all that talks to it.

    Args:
        process: None for a server that is not ours to restart.
    """

    def __init__(self, client: EngineClient, process: Restartable | None = None) -> None:
        self.client = client
        self.process = process
        self.setter = ConfigSetter(client)
        self.target = Target(client.url, api_key=client.keys.api)
        self.book = PromptBook(self.target)


class LiveEvaluator:
    """Implements `Evaluator`: sets the config, warms up, plays the schedule, sums up.

    Args:
        schedule_for: the requests of a seed.
        on_progress: told about twice a second how a run is getting on.
        workers: load processes that share a run's requests.
    """

    def __init__(
        self,
        server: LiveServer,
        schedule_for: Callable[[int], Schedule],
        slo: Slo,
        on_progress: Callable[[Progress], None] | None = None,
        workers: int = 1,
    ) -> None:
        self._server = server
        self._schedule_for = schedule_for
        self._slo = slo
        self._on_progress = on_progress
        self._workers = workers

    def evaluate(self, config: SchedulerConfig, seed: int, abort_pause_s: float | None) -> Measurement:
        started_s = time.perf_counter()
        try:
            measured = self._play(config, seed, abort_pause_s)
        except StaleConfigError:
            raise
        except LoadRunError as error:
            measured = Measurement(summary=None, problems=(str(error),))
        except (EngineError, TargetError) as error:
            measured = self._crash(error)
        return _timed(measured, time.perf_counter() - started_s)

    def _play(self, config: SchedulerConfig, seed: int, abort_pause_s: float | None) -> Measurement:
        server, schedule = self._server, self._schedule_for(seed)
        # What an aborted run left behind would weigh on this one.
        server.client.wait_idle(_IDLE_WITHIN_S)
        generation = server.setter.put(config, f"trial on traffic {seed}")
        server.client.ask("Hello", 2)
        after = int(server.client.stats(1.0).get("last_step_seq", 0))
        result = run_load(
            schedule, server.target, book=server.book, abort_pause_s=abort_pause_s,
            slo_pause_s=self._slo.pause_s, expected_generation=generation, num_processes=self._workers,
            on_progress=self._on_progress,
        )  # fmt: skip
        steps = tuple(step for _, step in server.client.steps(after))
        return self._measurement(result, schedule, generation, steps)

    def _measurement(
        self, result: LoadResult, schedule: Schedule, generation: int, steps: tuple[StepRecord, ...]
    ) -> Measurement:
        threshold = schedule.long_prompt_tokens
        summary = summarise(result.records, self._slo, long_prompt_tokens=threshold)
        problems, mend = result.validity.reasons, result.validity.mend
        if not problems and summary.worst_pause_s is None:
            problems, mend = (
                ("no answer streamed",),
                "the profile needs requests with more than one output token",
            )
        return Measurement(
            summary=summary,
            long_prompt_tokens=threshold,
            records=result.records,
            steps=steps,
            aborted=result.aborted,
            problems=problems,
            mend=mend,
            generation=generation,
        )

    def _crash(self, error: Exception) -> Measurement:
        """A server of our own is started again; a lost one that is not ours ends the study."""
        process = self._server.process
        if process is None:
            raise EngineError(str(error)) from error
        if not process.alive:
            process.restart()
            self._server.setter.reset()
        return Measurement(summary=None, crash=str(error))


def _timed(measured: Measurement, elapsed_s: float) -> Measurement:
    return dataclasses.replace(measured, elapsed_s=elapsed_s)
