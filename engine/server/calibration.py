"""Keeps the cost model in step with the machine, from the server's own step records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.core.cost_model import CostModel
from engine.core.errors import FitError
from engine.core.events import StepRecord
from engine.server.stats import Log

if TYPE_CHECKING:
    from engine.core.cost_fit import Fit

_log = logging.getLogger(__name__)
_FIRST = (32, 64, 128, 256)
_EVERY = 512
# Of each kind: a fit of this many takes a few milliseconds. Hours of nothing but writing must not push out
# what is known of reading.
_RECENT = 512


class Calibrator:
    """Refits after 32, 64, 128, 256 and then every 512 steps, on a worker thread.

    Args:
        calibrate: takes the new model, on the event loop.
        keep: stores it; called on the worker thread and may raise OSError.
    """

    def __init__(
        self,
        steps: Log[StepRecord],
        calibrate: Callable[[CostModel], None],
        keep: Callable[[Fit], None],
    ) -> None:
        self._keep = keep
        self._steps = steps
        self._calibrate = calibrate
        self._task: asyncio.Task[None] | None = None

    def on_step(self, seq: int) -> None:
        if (seq in _FIRST or seq % _EVERY == 0) and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._refit())

    async def _refit(self) -> None:
        try:
            fit = await asyncio.to_thread(_fit, self._steps.snapshot())
        except FitError as error:
            _log.debug("no new cost model: %s", error)
            return
        self._calibrate(fit.costs)
        try:
            await asyncio.to_thread(self._keep, fit)
        except OSError as error:
            _log.warning("the cost model could not be saved: %s", error)


def _fit(records: list[StepRecord]) -> Fit:
    reading = [record for record in records if record.prefill]
    writing = [record for record in records if not record.prefill]
    # Here, because numpy would cost every start of the command line a tenth of a second.
    from engine.core.cost_fit import fit_cost_model

    fit = fit_cost_model(reading[-_RECENT:] + writing[-_RECENT:])
    fit.check()
    return fit
