import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from loadtests.errors import LoadRunError
from loadtests.play.real_time import take_real_time

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(sys.platform != "linux", reason="real time is Linux's")
def test_real_time_is_taken_or_it_is_said_that_it_is_not_allowed() -> None:
    code = """
        import os
        from loadtests.errors import LoadRunError
        from loadtests.play.real_time import take_real_time
        try:
            take_real_time()
            assert os.sched_getscheduler(0) == os.SCHED_RR
        except LoadRunError:
            assert os.sched_getscheduler(0) == os.SCHED_OTHER
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]  # a process of its own: priorities stay
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_who_may_not_have_it_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    with pytest.raises(LoadRunError, match="run as root, else leave out"):
        take_real_time()
