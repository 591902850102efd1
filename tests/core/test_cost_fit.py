from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from engine.core.cost_fit import fit_cost_model, nnls
from engine.core.cost_model import CostModel, Work
from engine.core.errors import FitError
from engine.core.events import StepRecord
from engine.core.plan import PrefillChunk

TRUE = CostModel(0.01, 0.001, 2e-6, 0.03, 0.004, 1e-6)


def record(work: Work, seconds: float, chunks: tuple[PrefillChunk, ...] = ()) -> StepRecord:
    return StepRecord(0, 1, 0.0, seconds, work, chunks, 1, 0)


def records(noise: float, outliers: int = 0) -> list[StepRecord]:
    rng = random.Random(7)
    made = []
    for index in range(120):
        chunks = (PrefillChunk("p", rng.randrange(4000), rng.randrange(16, 1024), False),)
        decode = Work.of_decode(rng.randrange(10, 4000) for _ in range(rng.randrange(1, 9)))
        factor = 20.0 if index < outliers else 1 + rng.uniform(-noise, noise)
        prefill = Work.of_prefill(chunks)
        beside = prefill + decode.beside_chunks(index % 2 == 0)
        made.append(record(beside, TRUE.seconds(beside) * factor, chunks))
        if index % 3 == 1:
            made.append(record(prefill, TRUE.seconds(prefill) * factor, chunks))
        made.append(record(decode, TRUE.seconds(decode) * factor))
    return made


def test_exact_steps_give_the_exact_model() -> None:
    fit = fit_cost_model(records(noise=0))
    assert fit.costs.coefficients() == pytest.approx(TRUE.coefficients(), rel=1e-3)
    assert fit.prefill_error < 1e-6


def test_noise_and_a_few_stalls_do_not_bend_the_fit() -> None:
    fit = fit_cost_model(records(noise=0.1, outliers=6))
    for work in (Work.of_prefill([PrefillChunk("p", 2000, 256, False)]), Work.of_decode([500, 1500, 2500])):
        assert fit.costs.seconds(work) == pytest.approx(TRUE.seconds(work), rel=0.05)
    assert 0 < fit.prefill_error < 0.2


def test_one_step_timed_far_too_short_does_not_decide_the_fit() -> None:
    exact = records(noise=0)
    first = next(i for i, r in enumerate(exact) if not r.prefill)
    fit = fit_cost_model(
        [*exact[:first], dataclasses.replace(exact[first], duration_s=1e-6), *exact[first + 1 :]]
    )
    work = Work.of_decode([500, 1500, 2500])
    assert fit.costs.seconds(work) == pytest.approx(TRUE.seconds(work), rel=0.01)


def test_too_few_records_are_refused_with_the_number_wanted() -> None:
    with pytest.raises(FitError, match="record at least 8"):
        fit_cost_model(records(noise=0)[:10])


def test_nnls_never_goes_below_zero() -> None:
    matrix = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    solution = nnls(matrix, np.array([3.0, 2.0, 1.0]), np.ones(3))
    assert solution == pytest.approx([2.0, 0.0])


def test_max_chunk_tokens_inverts_the_cost() -> None:
    for start in (0, 500, 8000):
        tokens = TRUE.max_chunk_tokens(0.4, start)
        assert TRUE.prefill_seconds(tokens, start) <= 0.4 < TRUE.prefill_seconds(tokens + 1, start)
    assert TRUE.max_chunk_tokens(0.005, 0) == 0


@pytest.mark.parametrize("depth_s", [0.0, 1e-30, 1e-25, 1e-20, 1e-15])
def test_a_depth_term_that_is_next_to_nothing_changes_no_chunk(depth_s: float) -> None:
    costs = CostModel(0.0, 0.004, depth_s, 0.0, 0.0, 0.0)
    assert costs.max_chunk_tokens(0.502, 0) == 125


def held_up(share: float, short: float, seed: int) -> list[StepRecord]:
    """Steps of a busy machine: some take up to six times as long, some are timed far too short."""
    rng = random.Random(seed)
    made = []
    for one in records(noise=0.05):
        luck = rng.random()
        factor = rng.uniform(1.3, 6.0) if luck < share else 1.0
        factor = rng.uniform(0.05, 0.5) if luck > 1.0 - short else factor
        made.append(dataclasses.replace(one, duration_s=one.duration_s * factor))
    return made


@pytest.mark.parametrize(("share", "short"), [(0.1, 0.03), (0.25, 0.05)])
def test_a_quarter_of_all_steps_held_up_does_not_bend_the_fit(share: float, short: float) -> None:
    fit = fit_cost_model(held_up(share, short, 1))
    for work in (Work.of_prefill([PrefillChunk("p", 2000, 256, False)]), Work.of_decode([500, 1500, 2500])):
        assert fit.costs.seconds(work) == pytest.approx(TRUE.seconds(work), rel=0.05)


def test_errors_are_given_for_every_kind_of_step_and_by_depth() -> None:
    errors = fit_cost_model(records(noise=0.1)).errors
    kinds = {error.kind.rpartition(" ")[0] or error.kind: error for error in errors}
    assert set(kinds) == {"prefill", "mixed", "decode", "prefill to", "prefill from"}
    assert all(0.01 < error.error < 0.1 < error.p90 + 0.05 for error in errors)
    assert kinds["prefill to"].num_steps == pytest.approx(kinds["prefill from"].num_steps, abs=2)


def test_coefficients_come_with_the_range_that_held_out_steps_leave_them() -> None:
    fit = fit_cost_model(records(noise=0.1))
    for low, value, high in zip(
        fit.low.coefficients(), fit.costs.coefficients(), fit.high.coefficients(), strict=True
    ):
        assert low <= value * 1.2
        assert high >= value * 0.8


def test_steps_that_no_cost_model_explains_are_named() -> None:
    rng = random.Random(1)
    random_steps = [
        dataclasses.replace(one, duration_s=one.duration_s * 10 ** rng.uniform(-1.0, 1.0))
        if one.work.decode_rows and not one.prefill
        else one
        for one in records(noise=0.05)
    ]
    fit = fit_cost_model(random_steps)
    with pytest.raises(FitError, match=r"decode steps are missed by \d+% \(median of 120\)"):
        fit.check()
    fit_cost_model(records(noise=0.1)).check()
