"""A study: baseline, rule of thumb, simulated search, live search, confirmation on fresh traffic.

Everything it does to a server goes through the `Evaluator` port; everything it learns is in the store before
the next step begins, so that a study killed at any moment goes on from there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.core.config import SchedulerConfig
from tuner.announce import Announcer
from tuner.budget import Budget
from tuner.errors import Interrupted, TunerError
from tuner.runner import Runner, relative_error
from tuner.search.asker import Asker
from tuner.search.claim import Claim, claim_of
from tuner.search.confirm import Confirmer, Verdict
from tuner.search.limits import IMPOSSIBLE_HELP, Bound, Floor, bound_of, unfair_bound
from tuner.search.live import LiveSearch
from tuner.search.objective import Score
from tuner.search.plan import Plan
from tuner.search.prescreen import Prescreen
from tuner.search.state import Knowledge, numbers_of
from tuner.search_space import MIN_CHUNK_TOKENS, fixed_chunks, unchunked
from tuner.store.models import TrialKind, TrialStatus
from tuner.trials import Outcome, Trial, pool

__all__ = ["Plan", "Result", "Search", "out_of_reach"]

RULE_STARTS_AT_TOKENS = 1024
# Sizes next to the most promising are simulated too, first coarsely and then finely.
_SCAN_RATIOS = (1.07, 1.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a study found.

    Attributes:
        baseline: None when nothing had to be run to know that the SLO is out of reach.
        rule_of_thumb: None when no chunk size could be tried (prompts shorter than the smallest).
        winner: None when nothing keeps the SLO.
        claim: what its confirmation proves.
        keep_current: the winner is what the server had already.
        smallest: the run with the smallest pause: what can be had, and its price.
        bound: what keeps it from being smaller, when nothing won.
        idle_knobs: that do nothing on this traffic and were left alone.
        live_trials: runs of this study that ended and count.
        set_aside: runs that count no more: paused out of all proportion, or of a machine that has changed.
        unmeasured: of each config that could not be measured: why, and what to change.
        simulator_error_ttft, simulator_error_pause: medians over whole runs.
        simulator_error_runs: how many had a pause to compare.
        out_of_time: candidates were left untried.
    """

    smallest: Outcome
    baseline: Outcome | None = None
    rule_of_thumb: Outcome | None = None
    winner: Outcome | None = None
    winner_number: int | None = None
    claim: Claim | None = None
    keep_current: bool = False
    bound: Bound | None = None
    idle_knobs: tuple[str, ...] = ()
    live_trials: int = 0
    set_aside: int = 0
    unmeasured: tuple[str, ...] = ()
    simulated_trials: int = 0
    simulator_error_ttft: float | None = None
    simulator_error_pause: float | None = None
    simulator_error_runs: int = 0
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
        simulator = runner.predictor if plan.num_simulated else None
        sampler_seed = plan.seed + runner.study.round
        allowance_s = plan.simulate_share * budget.seconds
        self._prescreen = None
        if simulator:
            self._prescreen = Prescreen(
                simulator, plan.space, plan.seed, sampler_seed, lambda: budget.elapsed_s, allowance_s
            )
        self._knowledge = Knowledge(plan, runner, budget, self._prescreen)

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
        for config in filter(self._plan.space.contains, self._plan.try_first):
            self._asker.enqueue(config)
        self._simulate()
        self._try_current()
        LiveSearch(self._knowledge, self._asker, self._announcer).run()
        self._runner.await_others()
        return self._result(baseline, rule, self._confirm())

    def help(self) -> None:
        """Makes live trials of a search that another process leads, as long as it wants any."""
        self._runner.refresh()
        if self._prescreen is not None and not self._prescreen.found:
            self._simulate()
        LiveSearch(self._knowledge, self._asker, self._announcer).run()

    def _so_far(self) -> str:
        """What an interrupted round has found out."""
        best = self._knowledge.best()
        if best is not None:
            return f"best so far, not confirmed on fresh traffic yet: {numbers_of(best)}"
        return "no config tried so far keeps the SLO"

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
        self._announcer.done("chunking off", numbers_of(trial))
        return trial

    def _rule_of_thumb(self) -> Trial | None:
        """Start at 1,024 tokens and halve until the pause is tolerable, as one would by hand."""
        tried = None
        for chunk in self._rule_sizes():
            if self._budget.left_s <= 0:
                break
            self._announcer.doing(f"rule of thumb: {chunk} tokens")
            config = fixed_chunks(self._plan.space.base, chunk)
            trial = self._runner.run(TrialKind.RULE, config, self._plan.seed, self._knowledge.abort_s)
            self._announcer.done(f"rule of thumb: {chunk} tokens", numbers_of(trial))
            if trial.status is TrialStatus.INVALID:
                continue
            tried = trial
            by_hand = self._knowledge.by_hand
            if by_hand is not None and trial.number == by_hand.number:
                self._knowledge.known.append(config)
                break
        return tried

    def _rule_sizes(self) -> list[int]:
        """A chunk as long as the longest prompt is the same as none."""
        sizes = [RULE_STARTS_AT_TOKENS >> halvings for halvings in range(RULE_STARTS_AT_TOKENS.bit_length())]
        return [size for size in sizes if MIN_CHUNK_TOKENS <= size < self._plan.space.max_chunk_tokens]

    def _try_current(self) -> None:
        """What the server has already is run too, whether or not the search could pick it."""
        base = self._plan.space.base
        if self._plan.space.contains(base):
            self._asker.enqueue(base)
        elif self._knowledge.has_time():
            self._announcer.doing("what the server has already")
            trial = self._runner.run(TrialKind.SEARCH, base, self._plan.seed, self._knowledge.abort_s)
            self._announcer.done("what the server has already", numbers_of(trial))

    # -- simulation ------------------------------------------------------------------------------------

    def _simulate(self) -> None:
        if self._prescreen is None:
            return
        self._announcer.doing("simulating")
        chunked = self._knowledge.chunked()
        by_hand = self._knowledge.by_hand or (chunked[-1] if chunked else None)
        if by_hand is not None:
            self._prescreen.take_telling_window(by_hand.config)
        for trial in self._knowledge.settled():
            self._prescreen.predict(trial.config)
        self._prescreen.search(self._plan.num_simulated, self._knowledge.race().pause_ratio)
        self._leave_idle_knobs()
        for ratio in _SCAN_RATIOS:
            for config in self._knowledge.race().first_of_each_policy():
                self._prescreen.scan(config, ratio)
        self._store_predictions()
        kept = sum(standing.safe >= 0.5 for standing in self._knowledge.race().standings)
        self._announcer.done(
            f"simulated {len(self._prescreen.found)} configurations", f"{kept} probably keep the SLO"
        )

    def _leave_idle_knobs(self) -> None:
        assert self._prescreen is not None
        idle = self._prescreen.idle_knobs(self._knowledge.race().contenders(2))
        self._prescreen.leave_alone(idle)
        self._knowledge.idle_knobs = idle
        self._asker.narrow(replace(self._plan.space, idle=idle))
        if idle:
            named = ", ".join(idle)
            self._announcer.done("left alone: they do nothing on this traffic", named)

    def _store_predictions(self) -> None:
        assert self._prescreen is not None
        studies, study = self._runner.studies, self._runner.study
        # A round that was interrupted after its simulations has them already.
        if not studies.num_predictions(study):
            found = self._prescreen.found.values()
            studies.add_predictions(study, [(p.config, p.summary, p.aborted) for p in found])

    # -- the verdict -----------------------------------------------------------------------------------

    def _confirm(self) -> Verdict:
        return Confirmer(self._knowledge, self._announcer).run()

    def _smallest(self) -> Outcome:
        """The config whose worst run paused least: one lucky run is no promise, and a run that was cut short
        none at all.
        """
        by_config: dict[SchedulerConfig, list[Trial]] = {}
        for trial in self._knowledge.settled():
            if trial.worst_pause_s is not None:
                by_config.setdefault(trial.config, []).append(trial)
        outcomes = [pool(trials) for trials in by_config.values()]
        return min(outcomes, key=_promise, default=pool([self._runner.trials[0]]))

    def _result(self, baseline: Trial, rule: Trial | None, verdict: Verdict) -> Result:
        self._runner.refresh()  # what was set aside is in the store alone
        live = [t for t in self._runner.trials if t.is_complete]
        ttfts = [(t.predicted_long_ttft_s, t.long_ttft_p95_s) for t in live]
        pauses = [(t.predicted_worst_pause_s, t.worst_pause_s) for t in live]
        smallest = self._smallest()
        winner = pool(verdict.runs) if verdict.runs else None
        return Result(
            baseline=pool([self._latest(baseline)]),
            rule_of_thumb=pool([self._latest(rule)]) if rule else None,
            winner=winner,
            winner_number=verdict.runs[0].number if verdict.runs else None,
            claim=self._claim(verdict) if verdict.runs else None,
            keep_current=winner is not None and winner.config == self._plan.space.base,
            smallest=smallest,
            bound=None if winner else self._bound(smallest),
            idle_knobs=self._knowledge.idle_knobs,
            live_trials=len(self._knowledge.settled()),
            set_aside=sum(t.status is TrialStatus.SUSPECT for t in self._runner.trials),
            unmeasured=tuple(self._runner.unmeasured),
            simulated_trials=len(self._prescreen.found) if self._prescreen else 0,
            simulator_error_ttft=relative_error(ttfts),
            simulator_error_pause=relative_error(pauses),
            simulator_error_runs=sum(all(both) for both in pauses),
            out_of_time=verdict.out_of_time or self._was_cut(),
        )

    def _latest(self, trial: Trial) -> Trial:
        """The same run as it came out last: it is made again when the machine has changed."""
        same = [t for t in self._knowledge.settled() if (t.kind, t.config) == (trial.kind, trial.config)]
        return same[-1] if same else trial

    def _was_cut(self) -> bool:
        """The budget ended before the search did."""
        return self._knowledge.num_searched() < self._plan.num_trials and self._budget.left_s <= 0

    def _claim(self, verdict: Verdict) -> Claim:
        round_ = self._runner.study.round
        spoiled = (TrialStatus.INVALID, TrialStatus.LOST)
        tried = [t for t in self._runner.trials if t.kind is TrialKind.CONFIRM and t.round == round_]
        return claim_of(
            verdict.runs, [t for t in tried if t.status not in spoiled], self._plan.num_fresh, verdict.narrow
        )

    def _bound(self, smallest: Outcome) -> Bound:
        race = self._knowledge.race()
        standing = race.of(smallest.config)
        floor = self._plan.floor or Floor(0.0, 0.0)
        if (smallest.worst_pause_s or 0.0) <= self._plan.slo_pause_s and (price := self._unfair_price()):
            return unfair_bound(price)
        predicted_s = standing.pause.median_s if standing and self._prescreen else None
        least_s = min((one.pause.median_s for one in race.standings), default=0.0)
        hopeful = self._prescreen is None or least_s <= self._plan.slo_pause_s
        return bound_of(smallest, floor, self._plan.slo_pause_s, predicted_s, hopeful)

    def _unfair_price(self) -> Score | None:
        """What others paid in the last run that kept the SLO, if that is what spoke against it."""
        kept = [
            t for t in self._knowledge.settled() if t.is_complete and self._knowledge.score(t).pause <= 0.0
        ]
        price = self._knowledge.score(kept[-1]) if kept else None
        return None if price is None or price.fair else price


def out_of_reach(floor: Floor, slo_pause_s: float, config: SchedulerConfig) -> Result:
    """The verdict when no config can keep the SLO, as was measured before any was tried."""
    why = floor.verdict(slo_pause_s)
    assert why is not None
    outcome = Outcome(
        config=config,
        long_ttft_p95_s=None,
        long_ttft_n=0,
        worst_pause_s=max(floor.decode_s, floor.chunk_s),
        shed_rate=0.0,
        replicates=0,
        num_requests=0,
    )
    return Result(smallest=outcome, bound=Bound(why, IMPOSSIBLE_HELP))


def _promise(outcome: Outcome) -> tuple[bool, float]:
    return outcome.is_bound, float("inf") if outcome.worst_pause_s is None else outcome.worst_pause_s
