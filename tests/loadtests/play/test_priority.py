import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(code: str) -> str:
    """In a process of its own: priorities stay."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="real time is Linux's")
def test_it_takes_real_time_where_that_is_allowed() -> None:
    allowed = run(
        """
        import os
        try:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        except OSError:
            pass
        print(os.sched_getscheduler(0))
        """
    )
    code = """
        import os
        from loadtests.play.priority import come_first
        come_first()
        print(os.sched_getscheduler(0))
    """
    assert run(code) == allowed


def test_without_any_right_it_is_still_a_process_like_others() -> None:
    code = """
        import os
        from loadtests.play.priority import come_first

        def refuse(*_):
            raise PermissionError(1, "not permitted")

        os.sched_setscheduler = os.setpriority = refuse
        before = os.getpriority(os.PRIO_PROCESS, 0)
        come_first()
        print(os.getpriority(os.PRIO_PROCESS, 0) - before)
    """
    assert run(code) == "0"
