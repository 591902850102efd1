"""The same store in a PostgreSQL database."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect

from tests.tuner.engines import quick_optimize, read_json, run_tuner
from tests.tuner.fakes import FakeServer, StudyBench
from tests.tuner.postgresql import temporary_server
from tuner.errors import Interrupted, StoreError, UsageError
from tuner.paths import locate_database
from tuner.store.database import open_database
from tuner.store.models import TrialStatus
from tuner.store.optuna_storage import open_optuna


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with temporary_server() as url:
        yield url


@pytest.fixture
def url(server: str, request: pytest.FixtureRequest) -> str:
    """A database of the test's own."""
    name = request.node.name.replace("[", "_").replace("]", "")
    admin = create_engine(locate_database(server).url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f'CREATE DATABASE "{name}"')
    admin.dispose()
    return f"{server.rpartition('/')[0]}/{name}"


def test_an_interrupted_study_goes_on_to_the_same_end(url: str) -> None:
    bench = StudyBench(url)
    with pytest.raises(Interrupted):
        bench.run(FakeServer(bench.clock, interrupt_at=6))
    assert TrialStatus.LOST in [trial.status for trial in bench.studies.trials(bench.study)]
    again = StudyBench(url)
    result = again.run(FakeServer(again.clock))
    assert result.winner is not None
    done = [trial for trial in again.studies.trials(again.study) if trial.status is TrialStatus.DONE]
    assert again.studies.requests(done[0])
    assert again.studies.predictions(again.study) == []


def test_both_sets_of_tables_lie_in_schemas_of_one_database(url: str) -> None:
    location = locate_database(url)
    open_database(location, create=True).dispose()
    open_optuna(location)
    engine = create_engine(location.url)
    tables = inspect(engine)
    assert {"studies", "trials", "requests"} <= set(tables.get_table_names("evenflow"))
    assert "alembic_version" in tables.get_table_names("evenflow_optuna")
    assert tables.get_table_names("public") == []
    engine.dispose()


def test_many_may_make_the_tables_at_once(url: str) -> None:
    location = locate_database(url)

    def make(_: int) -> None:
        open_database(location, create=True).dispose()
        open_optuna(location)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(make, range(6)))
    open_database(location, create=False).dispose()


def test_a_reader_makes_no_tables(url: str) -> None:
    with pytest.raises(StoreError, match="is empty; run tuner optimize first"):
        open_database(locate_database(url), create=False)


def test_a_server_that_does_not_answer_is_named_in_one_line(tmp_path: Path) -> None:
    code, _, err = run_tuner(tmp_path, "show", "--db", "postgresql://me:secret@127.0.0.1:9/x")
    assert code == 1
    assert len(err.splitlines()) == 1
    assert "postgresql://127.0.0.1:9/x" in err
    assert "Connection refused" in err
    assert "secret" not in err


def test_without_psycopg_the_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install 'psycopg\[binary\]'"):
        open_database(locate_database("postgresql://127.0.0.1/x"), create=False)


@pytest.mark.parametrize("db", ["mysql://host/x", "redis://host"])
def test_another_kind_of_database_is_refused(db: str) -> None:
    with pytest.raises(UsageError, match="postgresql://"):
        locate_database(db)


def test_a_study_from_beginning_to_end(url: str, tmp_path: Path) -> None:
    code, out, err = run_tuner(tmp_path, *quick_optimize("--json", "--study", "first", "--db", url))
    assert code == 0, err
    result = read_json(out)
    assert result["db"] == url.replace("tuner@", "")
    shown = read_json(run_tuner(tmp_path, "show", "first", "--db", url, "--json")[1])
    assert shown["result"]["winner"] == result["winner"]
    assert list(tmp_path.iterdir()) == []
