import dataclasses
from typing import Any

import pytest

from loadtests.run import LoadResult, run_load
from loadtests.selftest import checks
from loadtests.selftest.cases import CASES
from loadtests.selftest.checks import SelftestResult, run_selftest


def failed(result: SelftestResult) -> list[str]:
    """Without what a busy machine spoils."""
    return [check.name for check in result.checks if not check.ok and not _is_timing(check.name)]


def _is_timing(name: str) -> bool:
    return name.endswith("times") or name in ("the client kept up", "the stall is seen")


def test_it_passes_on_this_client() -> None:
    result = run_selftest()
    assert failed(result) == []
    assert {case.name for case in CASES.values()} <= {check.name for check in result.checks}


def _altered(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> SelftestResult:
    """The selftest of a client that sees the steady stream otherwise than it was."""

    def run(*args: Any, **kwargs: Any) -> LoadResult:
        result = run_load(*args, **kwargs)
        records = [dataclasses.replace(r, **changes) if r.max_tokens == 30 else r for r in result.records]
        return dataclasses.replace(result, records=tuple(records))

    monkeypatch.setattr(checks, "run_load", run)
    return run_selftest(attempts=1)


def test_a_client_that_miscounts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failed(_altered(monkeypatch, output_tokens=29)) == ["role first, then a steady stream"]


def test_a_client_that_is_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _altered(monkeypatch, sent_at_s=-1.0)
    (check,) = [c for c in result.checks if c.name == "role first, then a steady stream: times"]
    assert not check.ok
    assert "TTFT" in check.detail
    assert result.worst_error_s > 1.0
