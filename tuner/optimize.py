"""`tuner optimize`: from the command line's wishes to a confirmed config."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from engine.core.slo import Slo
from loadtests.errors import LoadTestError
from loadtests.selftest.checks import run_selftest
from loadtests.traffic.schedule import Schedule, Sizing, uncached_tokens
from tuner.asker import Asker
from tuner.budget import Budget
from tuner.config_setter import restoring
from tuner.engine_client import EngineClient, Keys
from tuner.errors import Interrupted, TunerError, UnfinishedError
from tuner.live import LiveEvaluator, LiveServer
from tuner.paths import DatabaseLocation
from tuner.preflight import (
    Wanted,
    check_model,
    find_study,
    load_traffic,
    new_study,
    resume,
    stored_sizing,
)
from tuner.report import Subject, to_json
from tuner.runner import Runner
from tuner.search_space import SearchSpace
from tuner.served_model import model_info
from tuner.serving import EngineChoice, serving
from tuner.simulated import SimulatedEvaluator
from tuner.sizing import Capacity, Probe
from tuner.store.database import check_writable, open_database, writing
from tuner.store.models import StudyRow, StudyStatus
from tuner.store.optuna_storage import open_optuna
from tuner.store.studies import Studies
from tuner.study import Plan, Result, Search, out_of_reach
from tuner.terminal import TerminalAnnouncer
from tuner.traffic import Traffic

# No config makes a stream faster than its own decode steps.
_FLOOR_SHARE = 0.9
_BUSY_LOAD = 0.75
_BUSY_ERROR = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a study is done, besides what it is about.

    Attributes:
        num_trials: live search trials at most.
        num_simulated: configs tried in the simulator first; 0 leaves it out.
        selftest: check the load client first.
    """

    location: DatabaseLocation
    num_trials: int
    keys: Keys = Keys()
    num_simulated: int = 300
    replicates: int = 3
    selftest: bool = True


def optimize(wanted: Wanted, options: Options, announcer: TerminalAnnouncer) -> tuple[Subject, Result]:
    """Runs a study, or goes on with one.

    Raises:
        TunerError: it cannot be run to its end; one line.
        Interrupted: the study can be gone on with.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(writing(options.location))
        engine = open_database(options.location, create=True)
        stack.callback(engine.dispose)
        check_writable(engine, options.location)
        session = _Session(wanted, options, Studies(engine), announcer)
        return session.run(stack)


class _Session:
    """One run of `tuner optimize` over an open database."""

    def __init__(
        self, wanted: Wanted, options: Options, studies: Studies, announcer: TerminalAnnouncer
    ) -> None:
        self._wanted = wanted
        self._options = options
        self._studies = studies
        self._announcer = announcer
        self._budget = Budget(wanted.budget_s, time.monotonic)

    def run(self, stack: contextlib.ExitStack) -> tuple[Subject, Result]:
        known = find_study(self._studies, self._wanted)
        traffic = load_traffic(self._wanted, known)
        storage = open_optuna(self._options.location)
        choice = EngineChoice(
            self._wanted.engine, self._wanted.model, self._wanted.backend, self._options.keys
        )
        client = choice.connect()
        self._check_load()
        if self._options.selftest:
            self._check_client()
        server = stack.enter_context(serving(choice, client, self._announcer))
        study = self._open_study(known, traffic, server.client)
        stack.enter_context(self._marking(study))
        stack.enter_context(restoring(server.setter, self._announcer.warn))
        self._announcer.say(f"Evenflow · {study.model} · profile {traffic.name} · study {study.name}")
        capacity = self._capacity(study, traffic, server)
        if capacity.stall_floor_s > _FLOOR_SHARE * study.slo_pause_s:
            return self._finish(study, out_of_reach(capacity, server.setter.original.config))
        return self._finish(study, self._search(study, traffic, server, capacity, storage))

    def _finish(self, study: StudyRow, result: Result) -> tuple[Subject, Result]:
        subject = Subject(
            study=study.name,
            slo_pause_s=study.slo_pause_s,
            model=study.model,
            profile=study.profile,
            db=self._options.location.shown,
            elapsed_s=self._budget.elapsed_s,
        )
        if result.winner is None and result.out_of_time:
            raise UnfinishedError(
                "the budget ended before a config was confirmed; go on with the same command and "
                f"--study {study.name}"
            )
        self._studies.update(study, result=to_json(subject, result), status=StudyStatus.FINISHED)
        return subject, result

    # -- set-up ----------------------------------------------------------------------------------------

    def _check_load(self) -> None:
        """Two programs that compute at once on a few cores slow each other down many times over."""
        load, cores = os.getloadavg()[0], os.cpu_count() or 1
        if load > _BUSY_LOAD * cores:
            self._announcer.warn(
                f"this machine is busy already (load {load:.1f} on {cores} cores): what is measured now is "
                "worse than it will be; close other programs for numbers that hold"
            )

    def _check_client(self) -> None:
        self._announcer.doing("checking the load client")
        try:
            found = run_selftest()
        except LoadTestError as error:
            raise TunerError(str(error)) from error
        if not found.ok:
            failed = next(check for check in found.checks if not check.ok)
            raise TunerError(
                f"the load client is not exact here now ({failed.name}: {failed.detail}): close other "
                "programs and start again, or leave this check out with --no-selftest"
            )
        error_ms = found.worst_error_s * 1000
        self._announcer.done("load client checked against scripted streams", f"worst error {error_ms:.1f} ms")

    def _open_study(self, known: StudyRow | None, traffic: Traffic, client: EngineClient) -> StudyRow:
        model, _ = client.model()
        if known is None:
            return new_study(self._studies, self._wanted, traffic, model)
        check_model(known, model)
        return resume(self._studies, known)

    @contextlib.contextmanager
    def _marking(self, study: StudyRow) -> Iterator[None]:
        """Whatever ends the block early, the study says that it can be gone on with."""
        try:
            yield
        except BaseException as error:
            self._studies.interrupted(study)
            if isinstance(error, Interrupted):
                error.hint = f"nothing is lost: go on with the same command and --study {study.name}"
            raise

    def _capacity(self, study: StudyRow, traffic: Traffic, server: LiveServer) -> Capacity:
        stored = stored_sizing(study)
        if stored:
            return Capacity.from_mapping(stored["capacity"])
        self._announcer.doing("measuring what this server can do")
        capacity = Probe(server, study.seed).measure(study.slo_pause_s)
        self._announce_capacity(capacity, study.slo_pause_s)
        sizing = {"capacity": capacity.to_mapping(), "scale": traffic.scale}
        self._studies.update(study, sizing=sizing)
        return capacity

    def _announce_capacity(self, capacity: Capacity, slo_pause_s: float) -> None:
        floor = capacity.stall_floor_s
        possible = floor <= _FLOOR_SHARE * slo_pause_s
        verdict = "is possible" if possible else "is out of reach"
        self._announcer.done("stall floor (decode only)", f"{floor:.3f} s → {slo_pause_s:g} s {verdict}")
        errors = f"{capacity.prefill_error:.0%} prefill, {capacity.decode_error:.0%} decode"
        self._announcer.done(f"cost model from {capacity.num_steps} steps", f"held-out error {errors}")
        if capacity.unexplained:
            self._announcer.warn(f"{capacity.unexplained}; nothing is simulated")
        elif max(capacity.prefill_error, capacity.decode_error) > _BUSY_ERROR:
            self._announcer.warn(
                "steps of equal work took very different times: this machine is busy with something else, "
                "and what is found now may not hold when it is not"
            )

    # -- the study -------------------------------------------------------------------------------------

    def _search(
        self, study: StudyRow, traffic: Traffic, server: LiveServer, capacity: Capacity, storage: Any
    ) -> Result:
        sizing = capacity.sizing(study.slo_pause_s, traffic.long_prefill_slos)
        schedule_for = _schedules(traffic, sizing)
        self._announce_traffic(schedule_for(study.seed))
        slo = Slo(study.slo_pause_s)
        base = server.setter.original.config
        longest = max(request.prompt_tokens for request in schedule_for(study.seed).requests)
        space = SearchSpace(base, study.slo_pause_s, longest - 1, traffic.num_streams)
        live = LiveEvaluator(server, schedule_for, slo, self._announcer.running)
        model = model_info(server.client.model_entry(), capacity.context_tokens)
        simulator = SimulatedEvaluator(schedule_for, capacity.costs, model, slo, capacity.surroundings)
        predictor = None if capacity.unexplained else simulator
        runner = Runner(self._studies, study, live, self._announcer, predictor)
        plan = Plan(
            space=space,
            seed=study.seed,
            num_trials=self._options.num_trials,
            num_simulated=self._options.num_simulated,
            replicates=self._options.replicates,
            expected_run_s=schedule_for(study.seed).duration_s,
        )
        asker = Asker(storage, study.name, space, study.seed)
        return Search(plan, runner, asker, self._remaining(runner), self._announcer).run()

    def _announce_traffic(self, schedule: Schedule) -> None:
        new = zip(schedule.requests, uncached_tokens(schedule.requests), strict=True)
        long = [r for r, tokens in new if r.measured and tokens >= schedule.long_prompt_tokens]
        longest = max((request.prompt_tokens for request in long), default=0)
        detail = f"{schedule.num_measured} requests in {schedule.duration_s:.0f} s, {len(long)} of them long "
        self._announcer.done("traffic sized for this server", detail + f"(up to {longest} tokens)")
        for note in schedule.notes:
            self._announcer.warn(note)

    def _remaining(self, runner: Runner) -> Budget:
        """What an interrupted round has used up is not given again, but a verdict must stay possible."""
        round_ = runner.study.round
        used = sum(t.elapsed_s for t in runner.trials if t.round == round_)
        if not used:
            return self._budget
        enough = (self._options.replicates + 1) * runner.typical_run_s(0.0) * 1.5
        return Budget(max(enough, self._wanted.budget_s - used), time.monotonic)


def _schedules(traffic: Traffic, sizing: Sizing) -> Callable[[int], Schedule]:
    @cache
    def schedule_for(seed: int) -> Schedule:
        return traffic.build(seed, sizing)

    return schedule_for
