from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from engine.core.config import SchedulerConfig
from tuner.search.outlook import Expected, Outlook, Place, Seen
from tuner.search_space import fixed_chunks


def place(chunk_tokens: int) -> Place:
    return Place(fixed_chunks(SchedulerConfig(), chunk_tokens), math.log(chunk_tokens / 128))


def runs(ratio: float, spread: float, count: int = 10) -> list[Seen]:
    rng = random.Random(1)
    return [Seen(place(64 + 8 * i), ratio * math.exp(rng.gauss(0.0, spread))) for i in range(count)]


def test_a_simulator_that_is_always_off_alike_is_corrected() -> None:
    outlook = Outlook(runs(1.3, 0.01))
    assert outlook.expect(place(100), 0.4).median_s == pytest.approx(0.52, rel=0.03)


def test_without_runs_the_simulator_is_believed_with_much_doubt() -> None:
    expected = Outlook([]).expect(place(100), 0.4)
    assert expected.median_s == pytest.approx(0.4)
    assert expected.doubt > 0.2


def test_the_spread_follows_what_was_seen() -> None:
    assert Outlook(runs(1.0, 0.01)).spread < Outlook(runs(1.0, 0.1)).spread


def test_one_accident_does_not_widen_the_margin() -> None:
    calm = runs(1.0, 0.02)
    assert Outlook([*calm, Seen(place(100), 1.9)]).spread <= 2 * Outlook(calm).spread


def test_one_window_in_which_nobody_met_does_not_widen_the_margin() -> None:
    calm = runs(1.0, 0.02)
    outlook = Outlook([*calm, Seen(place(100), 0.2)])
    assert outlook.spread <= 2 * Outlook(calm).spread
    assert outlook.expect(place(100), 0.4).median_s == pytest.approx(0.4, rel=0.05)


def test_what_a_knob_does_is_learned_apart_from_the_rest() -> None:
    def seen(chunk_tokens: int, running: int, ratio: float) -> Seen:
        config = replace(place(chunk_tokens).config, max_running_requests=running)
        return Seen(Place(config, math.log(chunk_tokens / 128)), ratio)

    few = [seen(size, 4, 1.3) for size in (80, 120)]
    many = [seen(size, 16, 1.0) for size in (90, 110, 128)]
    outlook = Outlook([*few, *many])
    here = seen(100, 4, 1.0).place, seen(100, 16, 1.0).place, seen(100, 8, 1.0).place
    with_few, with_many, unknown = (outlook.expect(at, 1.0) for at in here)
    assert with_few.median_s > 1.1 * with_many.median_s
    assert unknown.doubt > max(with_few.doubt, with_many.doubt)


def test_a_run_stopped_early_raises_what_is_expected_and_never_lowers_it() -> None:
    seen = runs(1.0, 0.02)
    plain = Outlook(seen).expect(place(300), 1.0).median_s
    beyond = Outlook([*seen, Seen(place(300), 1.3, is_bound=True)]).expect(place(300), 1.0).median_s
    within = Outlook([*seen, Seen(place(300), 0.5, is_bound=True)]).expect(place(300), 1.0).median_s
    assert beyond > plain
    assert within == pytest.approx(plain)


def test_what_lies_well_below_the_limit_is_safer() -> None:
    assert Expected(0.40, 0.03, 0.04).chance_below(0.5) > 0.95
    assert Expected(0.49, 0.03, 0.04).chance_below(0.5) < 0.2
    assert Expected(0.45, 0.03, 0.02).chance_below(0.5) > Expected(0.45, 0.03, 0.08).chance_below(0.5)
