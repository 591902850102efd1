from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.exceptions import StorageInternalError
from sqlalchemy import event

from engine.core.config import SchedulerConfig
from tests.tuner.fakes import StudyBench
from tuner.errors import StoreError, StudyError
from tuner.evaluation.evaluators import Measurement
from tuner.paths import locate_database, state_dir
from tuner.store.database import check_writable, explain, open_database, open_to_read
from tuner.store.models import StudyRow, TrialKind, TrialStatus
from tuner.store.optuna_storage import explained
from tuner.store.studies import Studies


def pragma(file: Path, name: str) -> object:
    with sqlite3.connect(file) as connection:
        return connection.execute(f"pragma {name}").fetchone()[0]


def test_both_databases_write_ahead(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    from tuner.store.optuna_storage import open_optuna

    open_optuna(bench.location)
    assert pragma(tmp_path / "evenflow.db", "journal_mode") == "wal"
    assert pragma(tmp_path / "evenflow.optuna.db", "journal_mode") == "wal"


def test_a_reader_sees_a_study_that_is_being_written(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    study = bench.study
    bench.studies.start_trial(study, TrialKind.SEARCH, SchedulerConfig(), 1)
    writer = sqlite3.connect(tmp_path / "evenflow.db")
    writer.execute("BEGIN IMMEDIATE")
    engine = open_database(bench.location, create=False)
    from tuner.store.studies import Studies

    assert [t.status for t in Studies(engine).trials(study)] == [TrialStatus.RUNNING]
    writer.close()


def test_a_later_layout_is_left_alone(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    with sqlite3.connect(tmp_path / "evenflow.db") as connection:
        connection.execute("update evenflow_schema set version = 99")
    with pytest.raises(StoreError, match="layout 99"):
        open_database(bench.location, create=False)


def test_a_locked_database_is_noticed_before_the_first_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.store.database._BUSY_TIMEOUT_S", 0.05)
    location = locate_database(str(tmp_path / "evenflow.db"))
    engine = open_database(location, create=True)
    holder = sqlite3.connect(tmp_path / "evenflow.db")
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="locked"):
        check_writable(engine, location)
    holder.close()


def test_trials_are_numbered_within_their_study(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    study = bench.study
    for _ in range(3):
        row = bench.studies.start_trial(study, TrialKind.SEARCH, SchedulerConfig(), 1)
        bench.studies.end_trial(row, Measurement(summary=None, crash="gone"), 0.5)
    assert [(t.number, t.status) for t in bench.studies.trials(study)] == [
        (0, TrialStatus.CRASHED),
        (1, TrialStatus.CRASHED),
        (2, TrialStatus.CRASHED),
    ]


def test_an_unknown_study_names_the_known_ones(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    assert bench.study.name == "bench"
    with pytest.raises(StudyError, match="known studies: bench"):
        bench.studies.get("banana")


def test_a_database_without_studies_says_how_to_have_one(tmp_path: Path) -> None:
    database = open_database(locate_database(str(tmp_path / "new.db")), create=True)
    with pytest.raises(StudyError, match="no study; run tuner optimize first"):
        Studies(database).get(None)


def test_a_disk_that_fills_up_is_said_in_one_line(tmp_path: Path) -> None:
    location = locate_database(str(tmp_path / "new.db"))
    bench = StudyBench(tmp_path)
    database = open_database(location, create=True)
    event.listen(database, "connect", lambda connection, _: connection.execute("PRAGMA max_page_count = 1"))
    database.dispose()
    study = Studies(database).add(StudyRow(**bench.study.model_dump(exclude={"id"})))
    with pytest.raises(StoreError, match=r"new\.db cannot grow: the disk is full; make room"):
        Studies(database).update(study, sizing={"long": "x" * 1_000_000})


def test_a_disk_that_fills_up_under_optuna_is_the_same_line(tmp_path: Path) -> None:
    full = sqlite3.OperationalError("database or disk is full")
    with pytest.raises(StoreError, match="make room"), explained(locate_database(str(tmp_path / "new.db"))):
        raise StorageInternalError("An exception is raised during the commit.") from full


def test_a_folder_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    error = sqlite3.OperationalError("unable to open database file")
    assert "nothing can be written beside" in explain(locate_database(str(tmp_path / "new.db")), error)


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Whoever runs this may write nothing there; root, who always may, is nobody for a while."""
    user, nobody = os.geteuid(), 65534
    folder.chmod(0o555)
    if user == 0:
        os.seteuid(nobody)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o755)


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that everybody can reach."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def test_a_database_in_a_read_only_folder_can_be_read(tmp_path: Path, folder: Path) -> None:
    location = locate_database(str(folder / "evenflow.db"))
    database = open_database(location, create=True)
    Studies(database).add(StudyRow(**StudyBench(tmp_path).study.model_dump(exclude={"id"})))
    database.dispose()
    with read_only(folder):
        with pytest.raises(StoreError):
            open_database(location, create=False)
        (study,) = Studies(open_to_read(location)).all()
    assert study.name == "bench"


def test_what_a_killed_writer_left_beside_the_file_is_not_read_without(tmp_path: Path, folder: Path) -> None:
    bench = StudyBench(tmp_path)
    assert bench.study.name == "bench"
    for name in ("evenflow.db", "evenflow.db-wal"):
        shutil.copy(tmp_path / name, folder)
    assert (folder / "evenflow.db-wal").stat().st_size > 0
    with read_only(folder), pytest.raises(StoreError):
        open_to_read(locate_database(str(folder / "evenflow.db")))


def test_somebody_elses_file_in_a_read_only_folder_is_refused(folder: Path) -> None:
    (folder / "evenflow.db").write_bytes(b"SQLite format 3\x00 and then nonsense")
    with read_only(folder), pytest.raises(StoreError, match="not a database"):
        open_to_read(locate_database(str(folder / "evenflow.db")))


def test_where_the_state_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EVENFLOW_HOME", str(tmp_path))
    assert locate_database(None).file == tmp_path / "evenflow.db"
    monkeypatch.delenv("EVENFLOW_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert state_dir() == tmp_path / "xdg" / "evenflow"


def test_a_url_is_printed_without_its_password() -> None:
    location = locate_database("postgresql://me:secret@host/db")
    assert location.file is None
    assert location.shown == "postgresql://host/db"
