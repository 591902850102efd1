"""Benchmarks are run by hand; what they take for good is tested here."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from engine.core.config import SchedulerConfig
from tests.benchmarks.fidelity import Compared, Run, keeps_bar, report
from tests.benchmarks.fingerprint import decisive_sources, fingerprint
from tests.benchmarks.kill_resume import num_ended
from tests.benchmarks.search_bars import BAR_BUDGET, Found, Job, bars, table


def test_trials_that_ended_before_a_kill_are_counted() -> None:
    began = "Evenflow · m · study killed\n✓ engine started   http://127.0.0.1:1\n"
    assert num_ended(began) == 0
    spoiled = "! the load client spoiled a run (dispatch lag); running it again\n"
    ended = "✓ chunking off    3.57 s at 1.98 s\n✓ rule of thumb: 1024 tokens   stopped early\n"
    assert num_ended(began + spoiled + ended) == 3


GOOD = Found(
    job=Job("ours", "alone", 0.4, BAR_BUDGET, 1, 100, ""), spent=9.0, keeps=True, strictly=True, regret=0.03,
    no_worse=True, winner=SchedulerConfig(),
)  # fmt: skip
BREAKS = replace(GOOD, keeps=False, strictly=False, regret=math.inf, no_worse=False)
DEAR = replace(GOOD, regret=0.06)
SPENT = replace(GOOD, spent=BAR_BUDGET + 1.1)


@pytest.mark.parametrize(
    ("found", "missed"),
    [
        ([GOOD] * 20, ""),
        ([GOOD] * 19 + [replace(BREAKS, no_worse=None)], ""),
        ([GOOD] * 18 + [replace(BREAKS, no_worse=None)] * 2, "keeps the SLO"),
        ([GOOD] * 19 + [replace(GOOD, no_worse=False)], "rule of thumb"),
        ([GOOD] * 9 + [DEAR] * 11, "median +6.0%"),
        ([GOOD] * 19 + [SPENT], "spent beyond"),
        ([replace(SPENT, job=replace(GOOD.job, budget=4, method="tpe"))], ""),
    ],
)
def test_a_bar_is_missed_by_what_breaks_it_alone(found: list[Found], missed: str) -> None:
    words = [bar.words for bar in bars(found) if not bar.holds]
    assert len(words) == (1 if missed else 0)
    assert all(missed in said for said in words)


def test_winners_that_break_the_slo_are_infinitely_dear() -> None:
    row = list(table([GOOD] * 5 + [BREAKS] * 5))[1]
    assert "+3.0%  +inf%" in row
    assert "+inf%  +inf%" in list(table([GOOD] * 4 + [BREAKS] * 5))[1].replace("   ", "  ")


def test_a_truth_is_known_by_the_bytes_of_its_sources(tmp_path: Path) -> None:
    names = {source.name for source in decisive_sources()}
    assert {"scheduler.py", "cost_model.py", "simulate.py", "search_world.py", "ambush.yaml"} <= names
    file = tmp_path / "costs.py"
    file.write_text("1")
    before = fingerprint([file])
    assert fingerprint([file]) == before
    file.write_text("2")
    assert fingerprint([file]) != before


def compared(
    predicted: tuple[float | None, float | None], measured: tuple[float | None, float | None]
) -> Compared:
    run = Run("chat", 3, 0.5, {}, {"id": "sim"}, measured, shed=0.0, others=0.0)
    return Compared(run, predicted, 0.0, predicted)


@pytest.mark.parametrize(
    ("predicted", "measured", "missed"),
    [
        (2.0, 2.1, False),
        (None, None, False),
        (math.inf, math.inf, False),
        (None, 2.0, True),
        (2.0, None, True),
        (math.inf, 2.0, True),
        (2.0, math.inf, True),
    ],
)
def test_a_number_on_one_side_alone_is_a_miss(
    predicted: float | None, measured: float | None, missed: bool
) -> None:
    one = compared((predicted, 0.4), (measured, 0.4))
    assert one.is_missed(0) is missed
    assert (one.pair(0) is None) is (predicted in (None, math.inf) or measured in (None, math.inf))


def test_misses_are_counted_and_break_the_bar(capsys: pytest.CaptureFixture[str]) -> None:
    good, miss = compared((2.0, 0.4), (2.1, 0.41)), compared((2.0, 0.4), (None, 0.41))
    assert report([good] * 9 + [miss])
    assert "n = 10, 1 of them a number on one side alone" in capsys.readouterr().out
    assert not report([good] * 8 + [miss] * 2)
    assert not report([])


@pytest.mark.parametrize(
    ("errors", "kept"),
    [([0.1] * 9 + [0.3], True), ([0.1] * 8 + [0.3] * 2, False), ([0.11] * 10, False), ([], False)],
)
def test_the_bar_on_the_simulators_error(errors: list[float], kept: bool) -> None:
    assert keeps_bar(errors) is kept


def test_a_run_tells_its_backend() -> None:
    assert compared((1.0, 1.0), (1.0, 1.0)).run.backend == "sim"
    assert replace(compared((1.0, 1.0), (1.0, 1.0)).run, model={"id": "smollm2"}).backend == "mlx"
