"""Benchmarks are run by hand; what they take for good is tested here."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from engine.core.config import SchedulerConfig
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
