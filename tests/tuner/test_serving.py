from __future__ import annotations

import pytest
from rich.console import Console

from tuner.reporting.terminal import TerminalAnnouncer
from tuner.serving import EngineChoice


@pytest.mark.parametrize(("named", "warned"), [("llama", True), ("sim", False), (None, False)])
def test_a_model_that_is_not_the_one_a_running_server_has_is_not_passed_over(
    named: str | None, warned: bool
) -> None:
    console = Console(record=True, width=200)
    EngineChoice("http://engine", named).warn_of_model("sim", TerminalAnnouncer(console))
    assert ("serves sim" in console.export_text()) is warned
