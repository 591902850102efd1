"""Repeating a config that was run before, to see whether the machine is still what it was.

Heat, a power plan or another program change a machine's speed within a study, and what was measured before
then says nothing of what is measured after. Laptops went from 36.5 to 22.7 tokens a second (reported).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.announce import Announcer
from tuner.runner import Runner
from tuner.search_space import describe
from tuner.store.models import TrialKind
from tuner.trials import Trial

# A repeated run that is off by this factor, and by so many spreads, is drift. Chosen, not measured: three of
# the usual spreads of 4 % make the same 12 %.
_DRIFT_RATIO, _DRIFT_SPREADS = 1.12, 3.0


class DriftControl:
    """Compares a repeat of an earlier run with it, and sets aside what no longer holds."""

    def __init__(self, runner: Runner, announcer: Announcer) -> None:
        self._runner = runner
        self._announcer = announcer

    def check(self, before: Trial, spread: float, abort_pause_s: float, marks: Sequence[Trial]) -> None:
        """Repeats the run; if everything takes longer or shorter now, sets aside what no longer holds.

        Args:
            before: a complete run.
            spread: of repeated runs' long TTFTs, as the standard deviation of their logarithm.
            marks: runs that others are judged by: made again when they no longer hold.
        """
        self._announcer.doing(f"repeating {describe(before.config)} to see whether the machine has changed")
        again = self._repeat(before, abort_pause_s)
        if not _differ(before, again, spread):
            return
        once_more = self._repeat(before, abort_pause_s)
        if _differ(before, once_more, spread):
            ratio = _ratio(before, once_more)
            self._warn(ratio)
            new = [self._renew(mark, abort_pause_s) for mark in marks]
            self._set_aside_earlier([again, once_more, *new], ratio)
        elif _tells(once_more):
            self._runner.set_aside(again, f"off by {_ratio(before, again):.2f} from the run before, once")

    def _repeat(self, before: Trial, abort_pause_s: float) -> Trial:
        return self._runner.repeat(TrialKind.CONTROL, before.config, before.seed, abort_pause_s)

    def _renew(self, mark: Trial, abort_pause_s: float) -> Trial:
        """The run as it comes out now; the old one when that cannot be measured."""
        limit_s = None if mark.kind is TrialKind.BASELINE else abort_pause_s
        new = self._runner.repeat(mark.kind, mark.config, mark.seed, limit_s)
        return new if _tells(new) else mark

    def _warn(self, ratio: float) -> None:
        self._announcer.warn(
            f"this machine takes {ratio:.2f} times as long as when the search began (heat, or another "
            "program that came or went): runs from before are set aside, and the search goes on from what it "
            "is now"
        )

    def _set_aside_earlier(self, kept: Sequence[Trial], ratio: float) -> None:
        """All runs but these: they are of another machine. What was too slow on a faster one still is."""
        numbers = {trial.number for trial in kept}
        for trial in list(self._runner.trials):
            no_longer_holds = trial.is_complete or (trial.is_bound and ratio < 1.0)
            if no_longer_holds and trial.number not in numbers:
                self._runner.set_aside(trial, f"measured before everything took {ratio:.2f} times as long")


def _differ(before: Trial, again: Trial, spread: float) -> bool:
    ratio = _ratio(before, again)
    return _tells(again) and abs(math.log(ratio)) > max(math.log(_DRIFT_RATIO), _DRIFT_SPREADS * spread)


def _ratio(before: Trial, again: Trial) -> float:
    """Of the long TTFTs; of the pauses where the repeat did not get that far."""
    if before.long_ttft_p95_s and again.long_ttft_p95_s and again.is_complete:
        return again.long_ttft_p95_s / before.long_ttft_p95_s
    if before.worst_pause_s and again.worst_pause_s:
        return again.worst_pause_s / before.worst_pause_s
    return 1.0


def _tells(trial: Trial) -> bool:
    """What the load client spoiled, or what crashed, says nothing of the machine's speed."""
    return trial.is_complete or trial.is_bound
