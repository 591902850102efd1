"""Benchmarks are run by hand; what they take for good is tested here."""

from __future__ import annotations

from tests.benchmarks.kill_resume import num_ended


def test_trials_that_ended_before_a_kill_are_counted() -> None:
    began = "Evenflow · m · study killed\n✓ engine started   http://127.0.0.1:1\n"
    assert num_ended(began) == 0
    spoiled = "! the load client spoiled a run (dispatch lag); running it again\n"
    ended = "✓ chunking off    3.57 s at 1.98 s\n✓ rule of thumb: 1024 tokens   stopped early\n"
    assert num_ended(began + spoiled + ended) == 3
