from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from loadtests.scratch import scratch_folder

_HOLD = """
import sys
from loadtests.scratch import scratch_folder
with scratch_folder("evenflow-load-") as directory:
    (directory / "client.log").write_text("words")
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_what_a_killed_process_left_is_removed_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", _HOLD]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        held = Path(holder.stdout.readline().strip())
        with scratch_folder("evenflow-load-") as ours:
            assert sorted(tmp_path.iterdir()) == sorted([held, ours])
        holder.kill()
    assert [file.name for file in held.iterdir()]
    with scratch_folder("evenflow-load-") as ours:
        assert list(tmp_path.iterdir()) == [ours]
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    (tmp_path / "evenflow-load-of-somebody").mkdir()
    with scratch_folder("evenflow-load-"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["evenflow-load-of-somebody"]
