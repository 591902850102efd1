from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine.core.config import SchedulerConfig
from tests.patience import until
from tests.tuner.fakes import StudyBench
from tests.tuner.postgresql import temporary_server
from tuner.paths import locate_database
from tuner.store.claims import Claims, claims_of
from tuner.store.database import open_database
from tuner.store.models import TrialKind, TrialStatus
from tuner.store.studies import Studies

Opening = Callable[[], Claims]

_HOLD = """
import sys
from tuner.paths import locate_database
from tuner.store.claims import claims_of
from tuner.store.database import open_database
location = locate_database(sys.argv[1])
with claims_of(location, open_database(location, create=True)) as claims:
    print(claims.take("a"), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["sqlite", "postgresql"], scope="module")
def where(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path_factory.mktemp("claims") / "evenflow.db")
    else:
        with temporary_server() as url:
            yield url


@pytest.fixture
def opening(where: str) -> Iterator[Opening]:
    location = locate_database(where)
    engine = open_database(location, create=True)
    with ExitStack() as stack:
        yield lambda: stack.enter_context(claims_of(location, engine))
    engine.dispose()


def test_a_name_is_held_by_one(opening: Opening) -> None:
    first, second = opening(), opening()
    assert first.take("a")
    assert not second.take("a")
    assert not first.take("a")
    assert second.take("b")
    first.release("a")
    first.release("b")
    assert second.take("a")
    assert not first.take("b")


def test_closing_lets_everything_go(opening: Opening) -> None:
    first, second = opening(), opening()
    assert first.take("a")
    assert first.take("b")
    first.close()
    assert second.take("a")
    assert second.take("b")


def test_what_a_killed_process_held_falls_free(opening: Opening, where: str) -> None:
    claims, pipe = opening(), subprocess.PIPE
    command = [sys.executable, "-c", _HOLD, where]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "True"
        assert not claims.take("a")
        holder.kill()
    until(lambda: claims.take("a"))  # a database server takes a moment to notice


def test_nothing_is_left_beside_the_database(tmp_path: Path) -> None:
    location = locate_database(str(tmp_path / "evenflow.db"))
    engine = open_database(location, create=True)
    with claims_of(location, engine) as claims:
        claims.take("a")
    engine.dispose()
    assert [file.name for file in tmp_path.glob("*lock*")] == []


def test_a_trial_of_a_living_process_is_not_taken_for_a_lost_one(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    engine = open_database(bench.location, create=False)
    with claims_of(bench.location, engine) as ours, claims_of(bench.location, engine) as theirs:
        here, there = Studies(engine, ours), Studies(engine, theirs)
        row = there.start_trial(bench.study, TrialKind.SEARCH, SchedulerConfig(), 1)
        assert here.settle(bench.study) == 0
        assert here.start_trial(bench.study, TrialKind.SEARCH, SchedulerConfig(), 1).number == row.number + 1
        assert here.num_running(bench.study) == 2
        theirs.close()
        assert here.num_running(bench.study) == 1
    assert [trial.status for trial in bench.studies.trials(bench.study)] == [
        TrialStatus.LOST,
        TrialStatus.RUNNING,
    ]
