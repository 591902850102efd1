"""What a study comes to: its winner or the smallest pause, and the evidence."""

from __future__ import annotations

from dataclasses import dataclass

from engine.core.config import SchedulerConfig
from tuner.runner import relative_error
from tuner.search.claim import Claim, claim_of
from tuner.search.confirm import Verdict
from tuner.search.limits import IMPOSSIBLE_HELP, Bound, Floor, bound_of, unfair_bound
from tuner.search.objective import Score
from tuner.search.state import Knowledge
from tuner.store.models import TrialKind, TrialStatus
from tuner.trials import Outcome, Trial, pool


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


def conclude(knowledge: Knowledge, baseline: Trial, rule: Trial | None, verdict: Verdict) -> Result:
    """The result of a round that has ended."""
    runner, prescreen = knowledge.runner, knowledge.prescreen
    runner.refresh()  # what was set aside is in the store alone
    live = [t for t in runner.trials if t.is_complete]
    ttfts = [(t.predicted_long_ttft_s, t.long_ttft_p95_s) for t in live]
    pauses = [(t.predicted_worst_pause_s, t.worst_pause_s) for t in live]
    smallest = _smallest(knowledge)
    winner = pool(verdict.runs) if verdict.runs else None
    return Result(
        baseline=pool([_latest(knowledge, baseline)]),
        rule_of_thumb=pool([_latest(knowledge, rule)]) if rule else None,
        winner=winner,
        winner_number=verdict.runs[0].number if verdict.runs else None,
        claim=_claim(knowledge, verdict) if verdict.runs else None,
        keep_current=winner is not None and winner.config == knowledge.plan.space.base,
        smallest=smallest,
        bound=None if winner else _bound(knowledge, smallest),
        idle_knobs=knowledge.idle_knobs,
        live_trials=len(knowledge.settled()),
        set_aside=sum(t.status is TrialStatus.SUSPECT for t in runner.trials),
        unmeasured=tuple(runner.unmeasured),
        simulated_trials=len(prescreen.found) if prescreen else 0,
        simulator_error_ttft=relative_error(ttfts),
        simulator_error_pause=relative_error(pauses),
        simulator_error_runs=sum(all(both) for both in pauses),
        out_of_time=verdict.out_of_time or _was_cut(knowledge),
    )


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


def _smallest(knowledge: Knowledge) -> Outcome:
    """The config whose worst run paused least: one lucky run is no promise, and a run that was cut short none
    at all.
    """
    by_config: dict[SchedulerConfig, list[Trial]] = {}
    for trial in knowledge.settled():
        if trial.worst_pause_s is not None:
            by_config.setdefault(trial.config, []).append(trial)
    outcomes = [pool(trials) for trials in by_config.values()]
    return min(outcomes, key=_promise, default=pool([knowledge.runner.trials[0]]))


def _promise(outcome: Outcome) -> tuple[bool, float]:
    return outcome.is_bound, float("inf") if outcome.worst_pause_s is None else outcome.worst_pause_s


def _latest(knowledge: Knowledge, trial: Trial) -> Trial:
    """The same run as it came out last: it is made again when the machine has changed."""
    same = [t for t in knowledge.settled() if (t.kind, t.config) == (trial.kind, trial.config)]
    return same[-1] if same else trial


def _was_cut(knowledge: Knowledge) -> bool:
    """The budget ended before the search did, and something may keep the SLO for all that is known."""
    if knowledge.num_searched() >= knowledge.plan.num_trials or knowledge.budget.left_s > 0:
        return False
    return knowledge.prescreen is None or bool(knowledge.race().contenders(1))


def _claim(knowledge: Knowledge, verdict: Verdict) -> Claim:
    round_ = knowledge.runner.study.round
    spoiled = (TrialStatus.INVALID, TrialStatus.LOST)
    confirmed = [t for t in knowledge.runner.trials if t.kind is TrialKind.CONFIRM and t.round == round_]
    tried = [t for t in confirmed if t.status not in spoiled]
    return claim_of(verdict.runs, tried, knowledge.plan.num_fresh, verdict.narrow)


def _bound(knowledge: Knowledge, smallest: Outcome) -> Bound:
    slo_pause_s, race = knowledge.plan.slo_pause_s, knowledge.race()
    if (smallest.worst_pause_s or 0.0) <= slo_pause_s and (price := _unfair_price(knowledge)):
        return unfair_bound(price)
    standing = race.of(smallest.config)
    predicted_s = standing.pause.median_s if standing and knowledge.prescreen else None
    least_s = min((one.pause.median_s for one in race.standings), default=0.0)
    hopeful = knowledge.prescreen is None or least_s <= slo_pause_s
    floor = knowledge.plan.floor or Floor(0.0, 0.0)
    return bound_of(smallest, floor, slo_pause_s, predicted_s, hopeful)


def _unfair_price(knowledge: Knowledge) -> Score | None:
    """What others paid in the last run that kept the SLO, if that is what spoke against it."""
    scores = [knowledge.score(trial) for trial in knowledge.settled() if trial.is_complete]
    kept = [points for points in scores if points.pause <= 0.0]
    return kept[-1] if kept and not kept[-1].fair else None
