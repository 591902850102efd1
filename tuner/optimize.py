"""`tuner optimize`: from the command line's wishes to a confirmed config."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

from engine.core.config import parse_config
from engine.core.slo import Slo
from tuner.budget import Budget, check_affordable
from tuner.errors import EngineError, Interrupted, StoreError, UnfinishedError
from tuner.evaluation.live import LiveEvaluator, LiveServer
from tuner.evaluation.simulated import SimulatedEvaluator
from tuner.evaluation.sizing import Capacity, Probe
from tuner.joining import Joined, check_alike, claim_engine, is_searching, leadership, study_to_join
from tuner.preflight import (
    OWN_ENGINE,
    Options,
    Wanted,
    check_load_client,
    check_model,
    find_study,
    load_traffic,
    new_study,
    resume,
    stored_sizing,
    warn_if_busy,
)
from tuner.reporting.preparations import announce_capacity, announce_floor, announce_traffic
from tuner.reporting.report import Subject, to_json
from tuner.reporting.terminal import TerminalAnnouncer
from tuner.runner import Runner
from tuner.search.asker import Asker
from tuner.search.conclusion import Result, out_of_reach
from tuner.search.limits import Floor, floor_of
from tuner.search.plan import Plan
from tuner.search_space import SearchSpace
from tuner.server.config_setter import restoring
from tuner.server.engine_client import EngineClient
from tuner.server.served_model import model_info
from tuner.serving import EngineChoice, serving
from tuner.store.claims import Claims, claims_of
from tuner.store.database import check_writable, open_database
from tuner.store.models import StudyRow, StudyStatus
from tuner.store.optuna_storage import explained, open_optuna
from tuner.store.studies import Studies
from tuner.study import Search
from tuner.traffic.offered import Traffic
from tuner.transfer import find_earlier, measure_or_reuse
from tuner.trials import Trial

_POLL_S = 0.5


def optimize(
    wanted: Wanted, options: Options, announcer: TerminalAnnouncer
) -> tuple[Subject, Result] | Joined:
    """Runs a study, goes on with one, or helps the tuner that works on it now.

    Raises:
        TunerError: it cannot be run to its end; one line.
        Interrupted: the study can be gone on with.
    """
    with contextlib.ExitStack() as stack:
        engine = open_database(options.location, create=True)
        stack.callback(engine.dispose)
        check_writable(engine, options.location)
        claims = stack.enter_context(claims_of(options.location, engine))
        session = _Session(wanted, options, Studies(engine, claims), claims, announcer)
        claim = leadership(options.location, wanted.name)
        leads = claim is None or claims.take(claim)
        return session.run(stack) if leads else session.help(stack)


class _Session:
    """One run of `tuner optimize` over an open database."""

    def __init__(
        self,
        wanted: Wanted,
        options: Options,
        studies: Studies,
        claims: Claims,
        announcer: TerminalAnnouncer,
    ) -> None:
        self._wanted = wanted
        self._options = options
        self._studies = studies
        self._claims = claims
        self._announcer = announcer
        self._budget = Budget(wanted.budget_s, time.monotonic)

    def run(self, stack: contextlib.ExitStack) -> tuple[Subject, Result]:
        """Leads a study to its verdict."""
        known = find_study(self._studies, self._wanted)
        traffic = load_traffic(self._wanted, known)
        storage = open_optuna(self._options.location)
        server = self._serve(stack)
        study = self._open_study(known, traffic, server.client)
        if claim := leadership(self._options.location, study.name):
            self._claims.take(claim)
        return self._lead(stack, study, traffic, server, storage)

    def help(self, stack: contextlib.ExitStack) -> tuple[Subject, Result] | Joined:
        """Makes live trials for the tuner that leads the study, until that one gives the verdict. When it is
        gone without one, leads the study to its end.
        """
        study = study_to_join(self._studies, self._wanted, self._options.location)
        find_study(self._studies, self._wanted)
        traffic = load_traffic(self._wanted, study)
        storage = open_optuna(self._options.location)
        server = self._serve(stack)
        check_model(study, server.client.model()[0])
        self._announcer.say(f"Evenflow · {study.model} · profile {traffic.name} · helps with {study.name}")
        with restoring(server.setter, self._announcer.warn), explained(self._options.location):
            search = None
            while not self._takes_lead(study):
                study = self._studies.get(study.name)
                if study.status is StudyStatus.FINISHED:
                    return Joined(study.name, study.result)
                if search is None and is_searching(self._studies, study):
                    capacity = self._capacity(study, traffic, server)
                    search = self._search(study, traffic, server, capacity, storage, leads=False)
                if search is not None:
                    search.help()
                time.sleep(_POLL_S)
        self._announcer.warn("the tuner that led this study has ended; this one goes on with it")
        return self._lead(stack, resume(self._studies, study), traffic, server, storage)

    def _takes_lead(self, study: StudyRow) -> bool:
        """Whether the leader is gone, without a verdict."""
        claim = leadership(self._options.location, study.name)
        if claim is None or not self._claims.take(claim):
            return False
        if self._studies.get(study.name).status is not StudyStatus.FINISHED:
            return True
        self._claims.release(claim)
        return False

    def _serve(self, stack: contextlib.ExitStack) -> LiveServer:
        choice = EngineChoice(
            self._wanted.engine, self._wanted.model, self._wanted.backend, self._options.keys
        )
        client = choice.connect()
        if self._wanted.engine:
            claim_engine(self._claims, self._wanted.engine)
        warn_if_busy(self._announcer)
        if self._options.selftest:
            check_load_client(self._announcer)
        return stack.enter_context(serving(choice, client, self._announcer))

    def _lead(
        self, stack: contextlib.ExitStack, study: StudyRow, traffic: Traffic, server: LiveServer, storage: Any
    ) -> tuple[Subject, Result]:
        stack.enter_context(self._marking(study))
        stack.enter_context(explained(self._options.location))
        stack.enter_context(restoring(server.setter, self._announcer.warn))
        self._announcer.say(f"Evenflow · {study.model} · profile {traffic.name} · study {study.name}")
        capacity = self._capacity(study, traffic, server)
        floor = _floor(capacity, traffic, server)
        announce_floor(floor, study.slo_pause_s, self._announcer)
        if floor.verdict(study.slo_pause_s):
            base = server.setter.original.config
            return self._finish(study, out_of_reach(floor, study.slo_pause_s, base))
        return self._finish(study, self._search(study, traffic, server, capacity, storage).run())

    def _finish(self, study: StudyRow, result: Result) -> tuple[Subject, Result]:
        subject = Subject(
            study=study.name,
            slo_pause_s=study.slo_pause_s,
            model=study.model,
            profile=study.profile,
            db=self._options.location.shown,
            elapsed_s=self._budget.elapsed_s,
            trials=tuple(map(Trial.from_row, self._studies.trials(study))),
        )
        if result.winner is None and result.out_of_time:
            raise UnfinishedError(
                "the budget ended before a config was confirmed; go on with the same command and "
                f"--study {study.name}"
            )
        self._studies.update(study, result=to_json(subject, result), status=StudyStatus.FINISHED)
        return subject, result

    # -- set-up ----------------------------------------------------------------------------------------

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
            with contextlib.suppress(StoreError):  # a study that runs nowhere is taken for interrupted
                self._studies.interrupted(study)
            hint = f"nothing is lost: go on with the same command and --study {study.name}"
            if isinstance(error, Interrupted):
                error.hint = hint
            if isinstance(error, EngineError | StoreError):
                raise type(error)(f"{error}; {hint}") from error
            raise

    def _capacity(self, study: StudyRow, traffic: Traffic, server: LiveServer) -> Capacity:
        stored = stored_sizing(study)
        here = self._wanted.engine or OWN_ENGINE
        if stored and study.engine == here:
            return Capacity.from_mapping(stored["capacity"])
        self._announcer.doing("measuring what this server can do")
        probe = Probe(server, study.seed, self._budget.longest_read_s)
        if stored:
            sized = Capacity.from_mapping(stored["capacity"])
            check_alike(study, sized, probe.measure(study.slo_pause_s), here)
            return sized
        known = None if self._options.fresh else find_earlier(self._studies, study)
        capacity, sizing = measure_or_reuse(known, probe, study.slo_pause_s, self._announcer)
        announce_capacity(capacity, self._announcer)
        base = server.setter.original.config.to_mapping()
        self._studies.update(study, sizing=study.sizing | sizing | {"scale": traffic.scale, "base": base})
        return capacity

    # -- the study -------------------------------------------------------------------------------------

    def _search(
        self,
        study: StudyRow,
        traffic: Traffic,
        server: LiveServer,
        capacity: Capacity,
        storage: Any,
        *,
        leads: bool = True,
    ) -> Search:
        sizing = capacity.sizing(study.slo_pause_s, traffic.long_prefill_slos)
        schedule_for = traffic.schedules(sizing, study.seed)
        if leads:
            announce_traffic(schedule_for(study.seed), self._announcer)
            if traffic.held_out:
                self._announcer.done("held out", traffic.held_out)
        slo = Slo(study.slo_pause_s)
        stored = study.sizing.get("base")  # the same on every engine
        base = parse_config(stored) if stored else server.setter.original.config
        longest = max(request.prompt_tokens for request in schedule_for(study.seed).requests)
        space = SearchSpace(base, study.slo_pause_s, longest - 1, traffic.num_streams)
        live = LiveEvaluator(server, schedule_for, slo, self._announcer.running, self._options.workers)
        model = model_info(server.client.model_entry(), capacity.context_tokens)
        simulator = SimulatedEvaluator(schedule_for, capacity.costs, model, slo, capacity.surroundings)
        predictor = None if capacity.unexplained else simulator
        runner = Runner(self._studies, study, live, self._announcer, predictor)
        if leads and not runner.trials:
            check_affordable(schedule_for(study.seed).duration_s, self._wanted.budget_s)
        plan = Plan(
            space=space,
            seed=study.seed,
            num_trials=self._options.num_trials,
            num_simulated=self._options.num_simulated,
            replicates=self._options.replicates,
            try_first=tuple(map(parse_config, study.sizing.get("try_first", ()))),
            expected_run_s=schedule_for(study.seed).duration_s,
            floor=_floor(capacity, traffic, server),
            num_fresh=traffic.num_fresh,
        )
        # Helpers that begin with as many trials seen must not make the same picks.
        seed = study.seed if leads else study.seed + os.getpid()
        asker = Asker(storage, study.name, space, seed, leads=leads)
        budget = self._remaining(runner) if leads else self._budget
        return Search(plan, runner, asker, budget, self._announcer)

    def _remaining(self, runner: Runner) -> Budget:
        """What an interrupted round has used up is not given again, but a verdict must stay possible."""
        round_ = runner.study.round
        used = sum(t.elapsed_s for t in runner.trials if t.round == round_)
        if not used:
            return self._budget
        enough = (self._options.replicates + 1) * runner.typical_run_s(0.0) * 1.5
        return Budget(max(enough, self._wanted.budget_s - used), time.monotonic)


def _floor(capacity: Capacity, traffic: Traffic, server: LiveServer) -> Floor:
    model = model_info(server.client.model_entry(), capacity.context_tokens)
    return floor_of(capacity.costs, capacity.stall_floor_s, model, traffic.num_streams)
