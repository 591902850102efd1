"""A study over the simulated server: real plans, tokens and step records, in no time."""

from __future__ import annotations

import dataclasses
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path

from engine.core.config import SchedulerConfig
from engine.core.cost_model import CostModel
from engine.core.executor import ModelInfo
from engine.core.records import RequestRecord
from engine.core.report import summarise
from engine.core.request import Request
from engine.core.slo import Slo
from engine.sim.simulate import simulate
from tests.tuner.fakes import SLO_S, FakeClock, StudyBench
from tuner.evaluation.evaluators import Measurement
from tuner.evaluation.sizing import Capacity
from tuner.html_report.evidence import Evidence, gather
from tuner.reporting.report import Subject, to_json
from tuner.store.models import StudyStatus
from tuner.trials import Trial

LONG_TOKENS = 1000
STREAMS, LONGS, SHORTS = 3, (1.5, 5.0, 5.2), (0.6, 4.75, 8.0)
COSTS = CostModel(
    chunk_s=0.01,
    prefill_token_s=0.0015,
    prefill_token_depth_s=2e-7,
    decode_s=0.03,
    decode_row_s=0.004,
    decode_kv_token_s=2e-6,
)
CAPACITY = Capacity(COSTS, 0.04, 0.05, 100, 0.042, 8192)
ASKED = ["--slo-pause=0.5s", "--profile=/my profiles/p.yaml", "--trials=4"]
_MODEL = ModelInfo(name="m", context_tokens=8192, kv_capacity_tokens=100_000, num_layers=30)
_KINDS = ("stream", "long", "short")


class SimServer:
    """Implements `Evaluator` by the simulator.

    Args:
        drift: factor on every cost: 1.1 is a server a tenth slower than its cost model says.
    """

    def __init__(self, clock: FakeClock | None = None, drift: float = 1.0) -> None:
        self._clock = clock
        terms = dataclasses.asdict(COSTS)
        self._costs = CostModel(**{name: value * drift for name, value in terms.items()})

    def evaluate(self, config: SchedulerConfig, seed: int, abort_pause_s: float | None) -> Measurement:
        requests = _traffic(seed)
        run = simulate(requests, config, self._costs, _MODEL, abort_pause_s=abort_pause_s)
        records = tuple(_named(record) for record in run.records)
        if self._clock is not None:
            self._clock.now_s += 10.0
        return Measurement(
            summary=summarise(records, Slo(SLO_S), long_prompt_tokens=LONG_TOKENS),
            long_prompt_tokens=LONG_TOKENS,
            records=records,
            steps=tuple(run.steps),
            aborted=run.aborted,
            generation=7,
            elapsed_s=10.0,
        )


def _traffic(seed: int) -> list[Request]:
    rng = random.Random(seed)
    streams = [_request(f"stream-{i}", 64, 200, 0.05 * i) for i in range(STREAMS)]
    longs = [_request(f"long-{i}", 1500, 6, at + rng.uniform(0, 0.2)) for i, at in enumerate(LONGS)]
    shorts = [_request(f"short-{i}", 80, 10, at + rng.uniform(0, 0.2)) for i, at in enumerate(SHORTS)]
    return [*streams, *longs, *shorts]


def _request(name: str, prompt: int, output: int, at_s: float) -> Request:
    return Request(id=name, prompt=range(prompt), max_tokens=output, arrived_at_s=at_s)


def _named(record: RequestRecord) -> RequestRecord:
    """As a live run's record: with its kind, and what the server says at its end."""
    first = record.events[0].at_s if record.events else None
    reading = None if first is None else first - record.scheduled_at_s
    timings = {"id": record.id, "prefill_s": reading} if record.events else None
    return dataclasses.replace(record, kind=record.id.split("-")[0], timings=timings)


def sim_bench(directory: Path, *, finished: bool = True, drift: float = 1.08) -> StudyBench:
    """A store with one study in it.

    Args:
        finished: False leaves it interrupted after its live trials.
    """
    shutil.copytree(_made(finished, drift).name, directory, dirs_exist_ok=True)
    return StudyBench(directory)


@cache
def _made(finished: bool, drift: float) -> tempfile.TemporaryDirectory[str]:
    """The store, made once for all who copy it: it takes seconds."""
    directory = tempfile.TemporaryDirectory(prefix="study-")
    bench = StudyBench(Path(directory.name), num_trials=4)
    study = bench.study
    bench.studies.update(study, sizing={"capacity": CAPACITY.to_mapping(), "command": ASKED})
    result = bench.run(SimServer(bench.clock, drift), SimServer())
    subject = Subject(
        study="bench",
        slo_pause_s=SLO_S,
        model="m",
        profile="p",
        db="evenflow.db",
        elapsed_s=bench.clock.now_s,
        trials=tuple(map(Trial.from_row, bench.studies.trials(study))),
    )
    if finished:
        bench.studies.update(study, result=to_json(subject, result), status=StudyStatus.FINISHED)
    else:
        bench.studies.update(study, status=StudyStatus.INTERRUPTED)
    return directory


def evidence_of(bench: StudyBench) -> Evidence:
    return gather(bench.studies, bench.study, "evenflow.db")
