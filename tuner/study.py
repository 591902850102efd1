"""A study: baseline, rule of thumb, simulated search, live search, confirmation on fresh traffic.

Everything it does to a server goes through the `Evaluator` port; everything it learns is in the store before
the next step begins, so that a study killed at any moment goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from engine.core.config import SchedulerConfig
from tuner.announce import Announcer
from tuner.asker import Asker
from tuner.budget import Budget
from tuner.confirm import Confirmation, confirm
from tuner.errors import Interrupted, TunerError
from tuner.objective import ABORT_RATIO, Score, lost_rate, score
from tuner.runner import Runner, relative_error
from tuner.search_space import MIN_CHUNK_TOKENS, SearchSpace, describe, fixed_chunks, unchunked
from tuner.shortlist import Prediction, keeps_slo, predict_many, shortlist
from tuner.sizing import Capacity
from tuner.store.models import TrialKind, TrialStatus
from tuner.trials import Outcome, Trial, pool

RULE_STARTS_AT_TOKENS = 1024
# A sampler that only repeats itself has nothing left to try.
_MAX_REPEATS = 20
# Half of the live trials try what the simulator proposes, the other half what the search learns from them.
_SHORTLIST_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a study is asked to do.

    Attributes:
        seed: of the traffic every searched config meets.
        num_trials: live search trials at most; the budget may end the search before.
        num_simulated: configs tried in the simulator.
        simulate_share: of the budget, that the simulator may take.
        try_first: configs that did well elsewhere, worth a live trial each before anything else is tried.
        expected_run_s: a run's length until one has been made.
    """

    space: SearchSpace
    seed: int
    num_trials: int
    num_simulated: int = 300
    replicates: int = 3
    simulate_share: float = 0.06
    try_first: tuple[SchedulerConfig, ...] = ()
    expected_run_s: float = 30.0

    @property
    def slo_pause_s(self) -> float:
        return self.space.slo_pause_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a study found.

    Attributes:
        baseline: None when nothing had to be run to know that the SLO is out of reach.
        rule_of_thumb: None when no chunk size could be tried (prompts shorter than the smallest).
        winner: None when nothing keeps the SLO.
        smallest: the run with the smallest pause: what can be had, and its price.
        live_trials: runs of this study, whatever became of them.
        set_aside: runs made again because their pause was out of all proportion.
        unmeasured: of each config that could not be measured: why, and what to change.
        out_of_time: candidates were left untried.
    """

    smallest: Outcome
    baseline: Outcome | None = None
    rule_of_thumb: Outcome | None = None
    winner: Outcome | None = None
    winner_number: int | None = None
    live_trials: int = 0
    set_aside: int = 0
    unmeasured: tuple[str, ...] = ()
    simulated_trials: int = 0
    simulator_error_ttft: float | None = None
    simulator_error_pause: float | None = None
    out_of_time: bool = False


class Search:
    """One round of a study, from the baseline to the verdict.

    Args:
        asker: the live search.
        budget: started by the caller, so that preparations count.
    """

    def __init__(
        self, plan: Plan, runner: Runner, asker: Asker, budget: Budget, announcer: Announcer
    ) -> None:
        self._plan = plan
        self._runner = runner
        self._asker = asker
        self._budget = budget
        self._announcer = announcer
        self._num_simulated = 0

    def run(self) -> Result:
        """Does the round.

        Raises:
            TunerError: the server cannot be measured.
            Interrupted: after saying what is known.
        """
        try:
            return self._run()
        except Interrupted:
            self._announcer.warn(self._so_far())
            raise

    def _run(self) -> Result:
        baseline = self._baseline()
        rule = self._rule_of_thumb()
        for config in self._plan.try_first:
            self._asker.enqueue(config)
        self._enqueue_predicted()
        self._search_live(baseline)
        self._runner.await_others()
        verdict = self._confirm(baseline)
        return self._result(baseline, rule, verdict)

    def help(self) -> None:
        """Makes live trials of a search that another process leads, as long as it wants any."""
        self._runner.refresh()
        baselines = [trial for trial in self._runner.trials if trial.kind is TrialKind.BASELINE]
        self._search_live(baselines[-1])

    def _so_far(self) -> str:
        """What an interrupted round has found out."""
        baselines = [trial for trial in self._runner.trials if trial.kind is TrialKind.BASELINE]
        best = self._candidates(baselines[-1]) if baselines else []
        if best:
            return f"best so far, not confirmed on fresh traffic yet: {_numbers(best[0])}"
        return "no config tried so far keeps the SLO with a margin"

    # -- known points ----------------------------------------------------------------------------------

    def _baseline(self) -> Trial:
        self._announcer.doing("chunking off")
        config = unchunked(self._plan.space.base)
        trial = self._runner.run(TrialKind.BASELINE, config, self._plan.seed, None)
        if trial.status is TrialStatus.INVALID:
            raise TunerError(
                "nothing can be measured on this host at this load: the load client spoiled every run "
                f"({self._runner.unmeasured[-1]})"
            )
        self._announcer.done("chunking off", _numbers(trial))
        return trial

    def _rule_of_thumb(self) -> Trial | None:
        """Start at 1,024 tokens and halve until the pause is tolerable, as one would by hand."""
        tried = None
        for chunk in self._rule_sizes():
            if self._budget.left_s <= 0:
                break
            self._announcer.doing(f"rule of thumb: {chunk} tokens")
            config = fixed_chunks(self._plan.space.base, chunk)
            trial = self._live(TrialKind.RULE, config)
            self._announcer.done(f"rule of thumb: {chunk} tokens", _numbers(trial))
            if trial.status is TrialStatus.INVALID:
                continue
            tried = trial
            if tried.is_complete and _pause(tried) <= self._plan.slo_pause_s:
                break
        return tried

    def _rule_sizes(self) -> list[int]:
        """A chunk as long as the longest prompt is the same as none."""
        sizes = [RULE_STARTS_AT_TOKENS >> halvings for halvings in range(RULE_STARTS_AT_TOKENS.bit_length())]
        return [size for size in sizes if MIN_CHUNK_TOKENS <= size < self._plan.space.max_chunk_tokens]

    # -- search ----------------------------------------------------------------------------------------

    def _enqueue_predicted(self) -> None:
        simulator = self._runner.predictor
        runner = self._runner
        self._num_simulated = runner.studies.num_predictions(runner.study)
        # A round that was interrupted after its simulations has their proposals waiting in the search.
        if simulator is None or self._plan.num_simulated == 0 or self._num_simulated:
            return
        ratio = self._pause_ratio()
        self._announcer.doing("simulating")
        until_s = self._budget.elapsed_s + self._plan.simulate_share * self._budget.seconds
        predictions = predict_many(
            simulator, self._plan.space, self._plan.seed, self._plan.seed + runner.study.round,
            self._plan.num_simulated, ratio,
            lambda: self._budget.elapsed_s > until_s,
        )  # fmt: skip
        self._store_predictions(predictions)
        kept = sum(keeps_slo(p, self._plan.slo_pause_s, ratio) for p in predictions)
        self._announcer.done(f"simulated {len(predictions)} configurations", f"{kept} keep the SLO")
        wanted = max(1, round(self._plan.num_trials * _SHORTLIST_SHARE))
        for config in shortlist(predictions, self._plan.space, ratio, wanted):
            self._asker.enqueue(config)

    def _pause_ratio(self) -> float:
        """Measured ÷ predicted pause of the chunked runs so far: what the cost model leaves out.

        Kept within a factor of two of 1: one odd run must not switch the simulator off.
        """
        ratios = [
            trial.worst_pause_s / trial.predicted_worst_pause_s
            for trial in self._runner.trials
            if trial.is_complete and trial.kind is not TrialKind.BASELINE
            if trial.worst_pause_s and trial.predicted_worst_pause_s
        ]
        return min(2.0, max(0.5, median(ratios))) if ratios else 1.0

    def _store_predictions(self, predictions: Sequence[Prediction]) -> None:
        self._num_simulated = len(predictions)
        runner = self._runner
        results = [(p.config, p.summary, p.aborted) for p in predictions]
        runner.studies.add_predictions(runner.study, results)

    def _search_live(self, baseline: Trial) -> None:
        for trial in self._settled():
            if trial.seed == self._plan.seed and trial.kind is TrialKind.RULE:
                self._asker.learn(trial.config, self._score(trial, baseline))
        done = self._num_searched()
        repeats = 0
        while done < self._plan.num_trials and repeats < _MAX_REPEATS and self._has_time():
            number, config = self._asker.ask()
            repeats = repeats + 1 if self._is_known(config) else 0
            trial = self._live(TrialKind.SEARCH, config, number)
            if trial.status is TrialStatus.INVALID:
                self._asker.forget(number)
            else:
                self._asker.tell(number, self._score(trial, baseline))
            done = self._num_searched()
            self._announce_search(done, baseline)

    def _num_searched(self) -> int:
        self._runner.refresh()
        round_ = self._runner.study.round
        return sum(t.kind is TrialKind.SEARCH and t.round == round_ for t in self._settled())

    def _settled(self) -> list[Trial]:
        unscored = (TrialStatus.LOST, TrialStatus.INVALID, TrialStatus.SUSPECT)
        return [trial for trial in self._runner.trials if trial.status not in unscored]

    def _is_known(self, config: SchedulerConfig) -> bool:
        return self._runner.known(config, self._plan.seed, self._abort_s) is not None

    def _has_time(self) -> bool:
        """Whether another run fits before the time that the confirmation needs.

        As long as there is nothing to confirm, the whole budget goes into finding something.
        """
        run_s = self._runner.typical_run_s(self._plan.expected_run_s)
        near = ABORT_RATIO * self._plan.slo_pause_s
        to_confirm = any(trial.is_complete and _pause(trial) <= near for trial in self._runner.trials)
        return self._budget.left_s > run_s * (1 + self._plan.replicates * to_confirm)

    def _announce_search(self, done: int, baseline: Trial) -> None:
        best = self._candidates(baseline)
        run_s = self._runner.typical_run_s(self._plan.expected_run_s)
        left_s = (self._plan.num_trials - done + self._plan.replicates) * run_s
        shown = f"best so far {_numbers(best[0])}" if best else "none keeps the SLO so far"
        self._announcer.searching(done, self._plan.num_trials, shown, min(left_s, self._budget.left_s))

    def _live(self, kind: TrialKind, config: SchedulerConfig, number: int | None = None) -> Trial:
        return self._runner.run(kind, config, self._plan.seed, self._abort_s, number)

    @property
    def _abort_s(self) -> float:
        return ABORT_RATIO * self._plan.slo_pause_s

    def _score(self, trial: Trial, baseline: Trial) -> Score:
        return score(trial, self._plan.slo_pause_s, lost_rate(baseline.counts))

    # -- the verdict -----------------------------------------------------------------------------------

    def _candidates(self, baseline: Trial) -> list[Trial]:
        """Complete runs on the study's traffic that keep the SLO with a margin, cheapest first."""
        scored = [
            (self._score(trial, baseline), trial)
            for trial in self._runner.trials
            if trial.seed == self._plan.seed and trial.is_complete
        ]
        feasible = [(points.long_ttft_s, trial) for points, trial in scored if points.feasible]
        return [trial for _, trial in sorted(feasible, key=lambda pair: (pair[0], pair[1].number))]

    def _confirm(self, baseline: Trial) -> Confirmation:
        return confirm(
            self._candidates(baseline),
            nearest=self._smallest(),
            runner=self._runner,
            plan_seed=self._plan.seed,
            slo_pause_s=self._plan.slo_pause_s,
            replicates=self._plan.replicates,
            allowed_lost_rate=lost_rate(baseline.counts),
            budget=self._budget,
            announcer=self._announcer,
        )

    def _smallest(self) -> Trial:
        """The run with the smallest pause; complete ones first, a bound says little."""
        seen = [trial for trial in self._settled() if trial.worst_pause_s is not None]
        return min(seen, key=lambda trial: (trial.is_bound, _pause(trial)), default=self._runner.trials[0])

    def _smallest_of_configs(self) -> Outcome:
        """The config whose worst run paused least: one lucky run is no promise."""
        by_config: dict[SchedulerConfig, list[Trial]] = {}
        for trial in self._settled():
            if trial.worst_pause_s is not None:
                by_config.setdefault(trial.config, []).append(trial)
        outcomes = [pool(trials) for trials in by_config.values()]
        return min(outcomes, key=_promise, default=pool([self._runner.trials[0]]))

    def _result(self, baseline: Trial, rule: Trial | None, verdict: Confirmation) -> Result:
        live = [t for t in self._runner.trials if t.is_complete]
        ttfts = ((t.predicted_long_ttft_s, t.long_ttft_p95_s) for t in live)
        pauses = ((t.predicted_worst_pause_s, t.worst_pause_s) for t in live)
        return Result(
            baseline=pool([baseline]),
            rule_of_thumb=pool([rule]) if rule else None,
            winner=pool(verdict.runs) if verdict.runs else None,
            winner_number=verdict.runs[0].number if verdict.runs else None,
            smallest=self._smallest_of_configs(),
            live_trials=len(self._settled()),
            set_aside=self._runner.num_set_aside,
            unmeasured=tuple(self._runner.unmeasured),
            simulated_trials=self._num_simulated,
            simulator_error_ttft=relative_error(ttfts),
            simulator_error_pause=relative_error(pauses),
            out_of_time=verdict.out_of_time,
        )


def out_of_reach(capacity: Capacity, config: SchedulerConfig) -> Result:
    """The verdict when decode steps alone pause longer than the SLO: no config changes them."""
    floor = Outcome(
        config=config,
        long_ttft_p95_s=None,
        long_ttft_n=0,
        worst_pause_s=capacity.stall_floor_s,
        shed_rate=0.0,
        replicates=0,
        num_requests=0,
    )
    return Result(smallest=floor)


def _promise(outcome: Outcome) -> float:
    return float("inf") if outcome.worst_pause_s is None else outcome.worst_pause_s


def _pause(trial: Trial) -> float:
    return float("inf") if trial.worst_pause_s is None else trial.worst_pause_s


def _numbers(trial: Trial) -> str:
    if trial.status is TrialStatus.CRASHED:
        return f"crashed: {trial.problems}"
    if trial.status is TrialStatus.INVALID:
        return "could not be measured"
    if trial.worst_pause_s is None:
        return trial.problems or "nothing streamed"
    if trial.is_bound:
        return f"stopped early: a stream paused {trial.worst_pause_s:.2f} s"
    ttft = "long prompts lost" if trial.long_ttft_p95_s is None else f"{trial.long_ttft_p95_s:.2f} s"
    return f"{ttft} at {trial.worst_pause_s:.2f} s ({describe(trial.config)})"
