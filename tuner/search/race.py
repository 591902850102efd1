"""Who is in the race: every config that was simulated or run live, and what is expected of it by now."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from engine.core.config import PrefillPolicy, SchedulerConfig
from tuner.search.levels import Levels, OwnRuns, middle
from tuner.search.objective import Allowed
from tuner.search.outlook import Expected, Outlook, Place, Seen
from tuner.search.prescreen import Prediction
from tuner.search_space import SearchSpace, num_changes
from tuner.store.models import TrialStatus
from tuner.trials import Trial

# Where nothing else is said, a number here was chosen, not measured: our simulated searches
# (`tests/benchmarks/search_quality`, November 2026) tried them all together, none alone that we know of.

# Less than this is no gain: repeated runs of one config differ by as much.
LEAST_GAIN = 0.01
# What one can do by hand, or has already, is left only for something better by this.
_KNOWN_BONUS = 0.03
# Simulated long TTFTs that differ by less are the same, for a few windows cannot tell them apart. Of such
# configs the one that changes the fewest knobs comes first, for a change that does nothing for this traffic
# may do harm to other traffic; then the one with the longest steps, which wastes least when more is offered.
_SAME_PRICE = 0.02
# Each changed knob must promise so much for the same reason.
_CHANGE_COSTS = 0.02
# What was not run live may be worse than is thought: so many standard deviations of doubt count as its price.
# Without it winners of simulators that were wrong by 40 % were up to 38 % slower than the best, with it 12 %
# (our simulated searches, November 2026).
_CAUTION = 0.5
# A gain is beyond noise when it is so many standard errors of the difference: 95 % of normal ones lie within.
_BEYOND_NOISE = 2.0
# A policy that was never run to the end is tried before another that promises up to so many times as much:
# one run corrects the simulator for all configs of the policy.
_NEW_POLICY = 2.0
# A run beyond what is expected of it by this many standard deviations, and by this factor, is suspect: one
# normal run in 30,000, and over four times the usual spread. Fewer others than this say too little.
_SURPRISE, _SURPRISE_RATIO = 4.0, 1.2
_ENOUGH_SEEN = 4
# Beyond this ratio the live run met something that its simulation missed by a hair: it is compared with the
# windows in which the simulated one met it too. Cost models were wrong by up to 1.4 there, so a factor of two
# is not their error.
_MISSED = 2.0
# With less of a chance to keep the SLO a config is not worth more simulations.
_HOPELESS = 0.05
_SCORED = (TrialStatus.DONE, TrialStatus.ABORTED)


@dataclass(frozen=True, slots=True)
class Standing:
    """A config in the race.

    Attributes:
        hope_s: its long TTFT as expected, less the bonus of what is known already, plus the cost of changes.
        price_s: the same with some of the doubt: what it is judged by.
        safe: the probability that nearly every fresh window keeps the SLO.
        num_runs: complete live runs.
    """

    config: SchedulerConfig
    ttft: Expected
    pause: Expected
    hope_s: float
    price_s: float
    safe: float
    num_runs: int

    def gain_over(self, other: Standing | None, worst_s: float) -> float:
        """The share of the long TTFT that it saves over the other's price, if it is as good as is hoped."""
        before_s = worst_s if other is None else other.price_s
        return 1.0 - self.hope_s / before_s


class Race:
    """What is expected of every config, from predictions and live runs.

    Args:
        trials: all of them, whatever became of them.
        allowed: in the baseline's own window.
        is_fair: whether nobody else was made to pay for a complete run.
        seed: of the window that the baseline met.
        known: configs that one has or would find by hand.
    """

    def __init__(
        self,
        space: SearchSpace,
        trials: Sequence[Trial],
        predictions: Iterable[Prediction],
        allowed: Allowed,
        is_fair: Callable[[Trial], bool],
        seed: int,
        known: Sequence[SchedulerConfig],
    ) -> None:
        self._space = space
        self._allowed = allowed
        self._is_fair_run = is_fair
        self._seed = seed
        self._known = known
        self._trials = [trial for trial in trials if trial.status in _SCORED and trial.worst_pause_s]
        self._tried = {t.config for t in trials if t.seed == seed and t.status is not TrialStatus.LOST}
        told = (TrialStatus.DONE, TrialStatus.INVALID)
        self._policies = {trial.config.prefill_policy for trial in trials if trial.status in told}
        self._ruled_out = {trial.config for trial in trials if self._rules_out(trial)}
        self._predictions = {prediction.config: prediction for prediction in predictions}
        self._levels = Levels(list(self._predictions.values()))
        self._short_ratio = middle([ratio for t in self._trials if (ratio := self._seen_short(t))], 1.0)
        whole = [trial for trial in self._trials if trial.is_complete]
        self._own_pauses = OwnRuns((trial.config, trial.worst_pause_s) for trial in whole)
        self._own_ttfts = OwnRuns((trial.config, trial.long_ttft_p95_s) for trial in whole)
        self.pause = Outlook([seen for trial in self._trials if (seen := self._seen_pause(trial))])
        self.ttft = Outlook([seen for trial in self._trials if (seen := self._seen_ttft(trial))])
        self.standings = sorted(self._stand(), key=self._order)

    @property
    def pause_ratio(self) -> float:
        """Measured ÷ predicted pause near the SLO; at most a factor of two from 1."""
        ratio = self.pause.expect(Place(self._space.base, 0.0), 1.0).median_s
        return min(2.0, max(0.5, ratio))

    def of(self, config: SchedulerConfig) -> Standing | None:
        """The config's standing; None when nothing is known of it or it is ruled out."""
        return next((one for one in self.standings if one.config == config), None)

    def gains(self, one: Standing, other: Standing) -> bool:
        """Whether the one's long TTFT is shorter by more than runs of the same config differ."""
        error = self.ttft.spread * math.sqrt(1 / max(1, one.num_runs) + 1 / max(1, other.num_runs))
        return math.log(other.ttft.median_s / one.ttft.median_s) > _BEYOND_NOISE * error

    def leader(self, least_safe: float) -> Standing | None:
        """The cheapest config that has been run and is as safe as this."""
        return next((one for one in self.standings if one.num_runs and one.safe >= least_safe), None)

    def contenders(self, count: int) -> list[SchedulerConfig]:
        """The cheapest that may keep the SLO."""
        return [one.config for one in self.standings if one.safe >= _HOPELESS][:count]

    def first_of_each_policy(self) -> list[SchedulerConfig]:
        """The cheapest of each that probably keeps the SLO."""
        found: dict[PrefillPolicy, SchedulerConfig] = {}
        for one in self.standings:
            if one.safe >= 0.5:
                found.setdefault(one.config.prefill_policy, one.config)
        return list(found.values())

    def promising(self) -> tuple[Standing, float] | None:
        """The config most worth a live run, and what it promises: the share of the long TTFT that it saves
        times the chance that it keeps the SLO. What was tried before is left out, whatever became of it: what
        the client spoiled it would spoil again. Only a run that was lost with its process may be made again.
        """
        leader = self.leader(0.7)
        worst_s = max((one.price_s for one in self.standings), default=0.0)
        promises = [
            (one, one.safe * one.gain_over(leader, worst_s))
            for one in self.standings
            if not one.num_runs and one.config not in self._tried
        ]
        if not promises:
            return None

        def worth(pair: tuple[Standing, float]) -> float:
            is_new = pair[0].config.prefill_policy not in self._policies
            return pair[1] * (_NEW_POLICY if is_new else 1.0)

        return max(promises, key=worth)

    def is_surprising(self, trial: Trial) -> bool:
        """Whether the pause is out of all proportion to what other runs lead to expect."""
        others = [s for t in self._trials if t.number != trial.number and (s := self._seen_pause(t))]
        seen = self._seen_pause(trial) if trial.status in _SCORED else None
        if seen is None or len(others) < _ENOUGH_SEEN:
            return False
        outlook = Outlook(others)
        expected_s = outlook.expect(seen.place, 1.0).median_s
        return outlook.surprise(seen) > _SURPRISE and seen.ratio > _SURPRISE_RATIO * expected_s

    # -- standings -------------------------------------------------------------------------------------

    def _stand(self) -> Iterator[Standing]:
        runs: dict[SchedulerConfig, list[Trial]] = {}
        for trial in self._trials:
            runs.setdefault(trial.config, []).append(trial)
        for config in {**self._predictions, **runs}:
            standing = self._standing(config, runs.get(config, []))
            if standing is not None and config not in self._ruled_out:
                yield standing

    def _standing(self, config: SchedulerConfig, runs: Sequence[Trial]) -> Standing | None:
        prediction = self._predictions.get(config)
        whole = [trial for trial in runs if trial.is_complete and trial.long_ttft_p95_s]
        if prediction is not None and math.isfinite(prediction.long_ttft_s):
            if not whole and not self._is_fair(prediction):
                return None
            pause_s, ttft_s = self._levels.of(prediction)
        elif whole:
            pause_s, ttft_s = self._own_pauses.typical_s(config), self._own_ttfts.typical_s(config)
        else:
            return None
        place = self._place(config, pause_s)
        pause = self.pause.expect(place, pause_s)
        ttft = self.ttft.expect(place, ttft_s)
        bonus = _KNOWN_BONUS if config in self._known else 0.0
        hope_s = ttft.median_s * (1.0 - bonus) * (1.0 + _CHANGE_COSTS * num_changes(config, self._space.base))
        return Standing(
            config=config,
            ttft=ttft,
            pause=pause,
            hope_s=hope_s,
            price_s=hope_s * math.exp(_CAUTION * ttft.doubt),
            safe=pause.chance_below(self._space.slo_pause_s),
            num_runs=len(whole),
        )

    def _is_fair(self, prediction: Prediction) -> bool:
        """Whether others are not made to pay, as far as the simulator can tell."""
        short_s, limit_s = prediction.summary.short_ttft_p95_s, self._allowed.short_ttft_s
        fair_to_short = short_s is None or limit_s is None or short_s * self._short_ratio <= limit_s
        return fair_to_short and prediction.lost <= self._allowed.lost_rate

    def _order(self, standing: Standing) -> tuple[int, int, float]:
        steps = int(math.log(max(standing.price_s, 1e-9)) / _SAME_PRICE)
        return steps, num_changes(standing.config, self._space.base), -standing.pause.median_s

    def _rules_out(self, trial: Trial) -> bool:
        """Something other than the pause speaks against it: no margin helps there."""
        if trial.status is TrialStatus.CRASHED:
            return True
        return trial.is_complete and not self._is_fair_run(trial)

    # -- what was seen ---------------------------------------------------------------------------------

    def _place(self, config: SchedulerConfig, pause_s: float) -> Place:
        return Place(config, math.log(pause_s / self._space.slo_pause_s))

    def _seen_pause(self, trial: Trial) -> Seen | None:
        measured_s = trial.worst_pause_s
        predicted_s = trial.predicted_worst_pause_s
        if not measured_s:
            return None
        if not predicted_s:
            return self._beside_own(trial, measured_s, self._own_pauses)
        if trial.config.prefill_policy is PrefillPolicy.PACED:
            # Up to its target a paced step is as long as the server makes it, by what it has learned itself.
            predicted_s = max(predicted_s, min(measured_s, trial.config.pause_target_s))
        if measured_s > _MISSED * predicted_s and trial.config in self._predictions:
            predicted_s = max(predicted_s, self._levels.of(self._predictions[trial.config])[0])
            if measured_s < predicted_s:
                return None  # what it met may have been milder than what others meet
        return Seen(self._place(trial.config, predicted_s), measured_s / predicted_s, trial.is_bound)

    def _seen_short(self, trial: Trial) -> float | None:
        """Measured ÷ predicted short TTFT, in the study's own window."""
        prediction = self._predictions.get(trial.config)
        if prediction is None or trial.is_bound or trial.seed != self._seed:
            return None
        predicted_s, measured_s = prediction.summary.short_ttft_p95_s, trial.short_ttft_p95_s
        return measured_s / predicted_s if predicted_s and measured_s else None

    def _seen_ttft(self, trial: Trial) -> Seen | None:
        if trial.is_bound or not trial.long_ttft_p95_s or not trial.worst_pause_s:
            return None
        if not trial.predicted_long_ttft_s:
            return self._beside_own(trial, trial.long_ttft_p95_s, self._own_ttfts)
        pause_s = trial.predicted_worst_pause_s or trial.worst_pause_s
        return Seen(self._place(trial.config, pause_s), trial.long_ttft_p95_s / trial.predicted_long_ttft_s)

    def _beside_own(self, trial: Trial, measured_s: float, own: OwnRuns) -> Seen | None:
        """Without a simulator the config's own whole runs stand for its prediction."""
        if trial.is_bound:
            return None
        place = self._place(trial.config, self._own_pauses.typical_s(trial.config))
        return Seen(place, own.ratio(trial.config, measured_s), is_own=own.count(trial.config) == 1)
