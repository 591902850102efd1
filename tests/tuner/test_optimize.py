from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from loadtests.selftest.checks import Check, SelftestResult
from tuner import optimize as module
from tuner import preflight
from tuner.errors import TunerError
from tuner.optimize import optimize
from tuner.paths import locate_database
from tuner.preflight import Options, Wanted
from tuner.reporting.terminal import TerminalAnnouncer


def test_no_study_starts_with_a_load_client_that_is_not_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: Any) -> None:
        pytest.fail("an engine was started")

    late = Check("slow headers: times", False, "4 times, worst off by 21.00 ms")
    monkeypatch.setattr(preflight, "run_selftest", lambda: SelftestResult(0.021, (late,)))
    monkeypatch.setattr(module, "serving", start)
    wanted = Wanted(
        slo_pause_s=0.5, budget_s=60.0, profile="ambush", replay=None, engine=None, model=None,
        backend="sim", seed=0, name=None,
    )  # fmt: skip
    options = Options(location=locate_database(str(tmp_path / "e.db")), num_trials=1)
    with pytest.raises(TunerError, match=r"slow headers: times.*21\.00 ms.*--no-selftest"):
        optimize(wanted, options, TerminalAnnouncer(Console(quiet=True)))
