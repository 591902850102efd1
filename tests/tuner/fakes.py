"""A server in arithmetic: pauses and long TTFTs follow from the config, and nothing takes time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import optuna
from optuna.trial import TrialState

from engine.core.config import PrefillPolicy, SchedulerConfig
from engine.core.records import ContentEvent, Outcome, RequestRecord
from engine.core.report import summarise
from engine.core.slo import Slo
from tuner.announce import Silence
from tuner.budget import Budget
from tuner.errors import Interrupted
from tuner.evaluation.evaluators import Evaluator, Measurement
from tuner.paths import locate_database
from tuner.runner import Runner
from tuner.search.asker import Asker
from tuner.search.conclusion import Result
from tuner.search.plan import Plan
from tuner.search.state import Knowledge
from tuner.search_space import SearchSpace
from tuner.store.claims import Alone, Claims, FileClaims
from tuner.store.database import open_database
from tuner.store.models import StudyRow
from tuner.store.optuna_storage import open_optuna
from tuner.store.studies import Studies, now
from tuner.study import Search

PROMPT_TOKENS = 1000
SLO_S = 0.5
_TOKEN_S = 0.002
_CHUNK_S = 0.05
_FLOOR_S = 0.02


class FakeClock:
    """Seconds that pass only when a run is made."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class FakeServer:
    """Implements `Evaluator`.

    Attributes:
        seeds: of every run made, in order.

    Args:
        growth: factor on the pause for a seed: how unlucky its traffic is.
        jitter: factor on the long TTFT of a run, counted from 1.
        spoil: how many of the first runs the client spoils.
        spoils: whether it spoils every run of a config.
        short_ttft: of short requests by config, in seconds.
        short_by_window: the same by seed; the longer of both counts.
        interrupt_at: the run, counted from 1, during which the process is told to end.
    """

    def __init__(
        self,
        clock: FakeClock,
        growth: Callable[[int], float] = lambda seed: 1.0,
        jitter: Callable[[int], float] = lambda run: 1.0,
        token_s: float = _TOKEN_S,
        floor_s: float = _FLOOR_S,
        spoil: int = 0,
        interrupt_at: int | None = None,
        crash: Callable[[SchedulerConfig], bool] = lambda config: False,
        spoils: Callable[[SchedulerConfig], bool] = lambda config: False,
        short_ttft: Callable[[SchedulerConfig], float] = lambda config: 0.1,
        short_by_window: Callable[[int], float] = lambda seed: 0.1,
    ) -> None:
        self._clock = clock
        self._growth = growth
        self._jitter = jitter
        self._token_s = token_s
        self._floor_s = floor_s
        self._spoil = spoil
        self._interrupt_at = interrupt_at
        self._crash = crash
        self._spoils = spoils
        self._short_ttft = short_ttft
        self._short_by_window = short_by_window
        self._slow_from, self._slowness = 1 << 30, 1.0
        self.seeds: list[int] = []
        self.configs: list[SchedulerConfig] = []

    def slow_after(self, num_runs: int, slowness: float) -> None:
        """Makes everything take so many times as long after that many runs."""
        self._slow_from, self._slowness = num_runs, slowness

    def evaluate(self, config: SchedulerConfig, seed: int, abort_pause_s: float | None) -> Measurement:
        self.seeds.append(seed)
        self.configs.append(config)
        if len(self.seeds) == self._interrupt_at:
            raise Interrupted(2)
        if self._crash(config):
            return Measurement(summary=None, crash="the engine ended with status 139")
        chunk = self._chunk_tokens(config)
        pause = (self._floor_s + chunk * self._token_s) * self._growth(seed)
        ttft = PROMPT_TOKENS * self._token_s + (PROMPT_TOKENS / chunk) * _CHUNK_S
        ttft *= self._jitter(len(self.seeds))
        slowness = self._slowness if len(self.seeds) > self._slow_from else 1.0
        pause, ttft = pause * slowness, ttft * slowness
        aborted = abort_pause_s is not None and pause > abort_pause_s
        elapsed = 2.0 if aborted else 10.0
        self._clock.now_s += elapsed
        short = max(self._short_ttft(config), self._short_by_window(seed))
        records = _records(pause, ttft, short, aborted)
        spoiled = len(self.seeds) <= self._spoil or self._spoils(config)
        return Measurement(
            summary=summarise(records, Slo(SLO_S), long_prompt_tokens=PROMPT_TOKENS),
            long_prompt_tokens=PROMPT_TOKENS,
            records=records,
            aborted=aborted,
            problems=("dispatch lag",) if spoiled else (),
            mend="close other programs" if spoiled else "",
            generation=len(self.seeds),
            elapsed_s=elapsed,
        )

    def _chunk_tokens(self, config: SchedulerConfig) -> int:
        if config.prefill_policy is PrefillPolicy.WHOLE:
            return PROMPT_TOKENS
        if config.prefill_policy is PrefillPolicy.PACED:
            return max(1, min(PROMPT_TOKENS, int((config.pause_target_s - _FLOOR_S) / self._token_s)))
        return min(PROMPT_TOKENS, config.prefill_chunk_tokens)


def _records(pause_s: float, ttft_s: float, short_s: float, aborted: bool) -> tuple[RequestRecord, ...]:
    end = Outcome.UNFINISHED if aborted else Outcome.COMPLETED
    events = (ContentEvent(short_s, 1), ContentEvent(short_s + pause_s, 1))
    stream = RequestRecord(
        id="stream", scheduled_at_s=0.0, sent_at_s=0.0, planned_prompt_tokens=10, max_tokens=2,
        outcome=end, ended_at_s=short_s + pause_s, events=events, output_tokens=2, kind="stream",
    )  # fmt: skip
    long = RequestRecord(
        id="long", scheduled_at_s=0.0, sent_at_s=0.0, planned_prompt_tokens=PROMPT_TOKENS, max_tokens=1,
        outcome=Outcome.COMPLETED, ended_at_s=ttft_s, events=(ContentEvent(ttft_s, 1),), output_tokens=1,
        kind="long",
    )  # fmt: skip
    return stream, long


class StudyBench:
    """A study over a fake server and a real store, in a directory or at a database's URL; made anew, it goes
    on with it.
    """

    def __init__(
        self,
        where: Path | str,
        num_trials: int = 6,
        budget_s: float = 1000.0,
        *,
        shared: bool = False,
        base: SchedulerConfig | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.location = locate_database(where if isinstance(where, str) else str(where / "evenflow.db"))
        engine = open_database(self.location, create=True)
        self.claims: Claims = FileClaims(self.location.file) if shared and self.location.file else Alone()
        self.studies = Studies(engine, self.claims)
        self._num_trials = num_trials
        self._budget_s = budget_s
        self._space = SearchSpace(base or SchedulerConfig(), SLO_S, PROMPT_TOKENS - 1, 3)

    @property
    def study(self) -> StudyRow:
        found = self.studies.find("bench")
        return found or self.studies.add(_study_row())

    def run(
        self,
        server: Evaluator,
        predictor: Evaluator | None = None,
        try_first: tuple[SchedulerConfig, ...] = (),
    ) -> Result:
        """One round with this server behind it."""
        return self._search(server, predictor, leads=True, try_first=try_first).run()

    def help(self, server: Evaluator) -> None:
        """Live trials of the search that another bench leads."""
        self._search(server, None, leads=False).help()

    @property
    def num_told(self) -> int:
        """Trials that the search has learnt from."""
        study = optuna.load_study(study_name="bench", storage=open_optuna(self.location))
        return len(study.get_trials(states=(TrialState.COMPLETE,)))

    def _search(
        self,
        server: Evaluator,
        predictor: Evaluator | None,
        *,
        leads: bool,
        try_first: tuple[SchedulerConfig, ...] = (),
    ) -> Search:
        study, plan = self.study, replace(self._plan, try_first=try_first)
        runner = Runner(self.studies, study, server, Silence(), predictor)
        seed = 1 if leads else 2
        asker = Asker(open_optuna(self.location), study.name, self._space, seed, leads=leads)
        return Search(plan, runner, asker, Budget(self._budget_s, self.clock), Silence())

    @property
    def _plan(self) -> Plan:
        return Plan(
            space=self._space, seed=1, num_trials=self._num_trials, num_simulated=40, simulate_share=1e9
        )

    def knowledge(self, server: Evaluator) -> Knowledge:
        """What the study knows by its runs, without a simulator."""
        runner = Runner(self.studies, self.study, server, Silence())
        return Knowledge(self._plan, runner, Budget(self._budget_s, self.clock), None)


def _study_row() -> StudyRow:
    return StudyRow(
        name="bench",
        slo_pause_s=SLO_S,
        profile="p",
        model="m",
        engine="own",
        seed=1,
        created_at=now(),
        updated_at=now(),
    )
