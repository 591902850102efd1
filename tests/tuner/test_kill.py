"""A study killed at a commit of either database: nothing is torn, and it goes on."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tuner.fakes import FakeServer, StudyBench
from tuner.preflight import resume
from tuner.store.models import TrialStatus

# The process ends itself as its Nth transaction is about to be written.
_RUN = """
import os, signal, sys
from pathlib import Path
from sqlalchemy import Engine, event
from tests.tuner.fakes import FakeServer, StudyBench

left = int(sys.argv[2])

@event.listens_for(Engine, "commit")
def on_commit(_):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

bench = StudyBench(Path(sys.argv[1]))
bench.run(FakeServer(bench.clock))
"""


def is_whole(file: Path) -> bool:
    with sqlite3.connect(file) as connection:
        return bool(connection.execute("pragma integrity_check").fetchone() == ("ok",))


@pytest.mark.parametrize("commit", [5, 20, 40, 60, 80])
def test_a_study_killed_at_a_commit_goes_on(tmp_path: Path, commit: int) -> None:
    killed = subprocess.run([sys.executable, "-c", _RUN, tmp_path, str(commit)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert all(is_whole(file) for file in tmp_path.glob("*.db"))

    bench = StudyBench(tmp_path)
    before = bench.studies.trials(bench.study)
    settled = [trial.number for trial in before if trial.status is not TrialStatus.RUNNING]
    assert len(before) - len(settled) <= 1
    resume(bench.studies, bench.study)
    result = bench.run(FakeServer(bench.clock))
    assert result.winner is not None
    after = bench.studies.trials(bench.study)
    lost = {trial.number for trial in after if trial.status is TrialStatus.LOST}
    assert lost == {trial.number for trial in before} - set(settled)
    assert TrialStatus.RUNNING not in {trial.status for trial in after}
