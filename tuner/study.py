"""A study: baseline, rule of thumb, simulated search, live search, confirmation on fresh traffic.

Everything it does to a server goes through the `Evaluator` port; everything it learns is in the store before
the next step begins, so that a study killed at any moment goes on from there.
"""

from __future__ import annotations

from dataclasses import replace

from tuner.announce import Announcer
from tuner.budget import Budget
from tuner.errors import Interrupted, TunerError
from tuner.runner import Runner
from tuner.search.asker import Asker
from tuner.search.conclusion import Result, conclude
from tuner.search.confirm import Confirmer
from tuner.search.live import LiveSearch
from tuner.search.plan import Plan
from tuner.search.prescreen import Prescreen
from tuner.search.state import Knowledge, numbers_of
from tuner.search_space import MIN_CHUNK_TOKENS, fixed_chunks, unchunked
from tuner.store.models import TrialKind, TrialStatus
from tuner.trials import Trial

RULE_STARTS_AT_TOKENS = 1024
# Sizes next to the most promising are simulated too, first coarsely and then finely.
_SCAN_RATIOS = (1.07, 1.02)


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
        verdict = Confirmer(self._knowledge, self._announcer).run()
        return conclude(self._knowledge, baseline, rule, verdict)

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
