"""A process whose engine thread used MLX must end without an abort."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mlx_backend.tiny_models import make_tiny_model

# Without the clean-up in `MlxExecutor.close`, 8 of 20 starts aborted; set EVENFLOW_EXIT_STARTS=100 to
# make sure of a change to it.
STARTS = int(os.environ.get("EVENFLOW_EXIT_STARTS", "3"))

PROGRAM = """
import sys, threading, time
from engine.mlx_backend.executor import MlxExecutor
from engine.mlx_backend.model import load_model
from engine.warmup import warm_up

def own_the_device():
    executor = MlxExecutor(load_model(sys.argv[1]))
    warm_up(executor, time.perf_counter)
    executor.close()

thread = threading.Thread(target=own_the_device)
thread.start()
thread.join()
print("ended")
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("start", range(STARTS))
def test_the_process_exits_cleanly(model: Path, start: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(model)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
