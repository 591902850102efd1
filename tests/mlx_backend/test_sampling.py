from __future__ import annotations

import math

import mlx.core as mx
import pytest

from engine.core.request import SamplingParams
from engine.mlx_backend.sampling import greedy, penalise, random_keys, sample

GREEDY = SamplingParams()
LOGITS = mx.array([[2.0, 1.0, 0.0, -1.0, -9.0]])


def draws(params: SamplingParams, count: int = 400, logits: mx.array = LOGITS) -> list[int]:
    batch = mx.broadcast_to(logits, (count, logits.shape[-1]))
    keys = random_keys([0] * count, list(range(count)))
    return [int(token) for token in sample(batch, [params] * count, keys).tolist()]


def test_temperature_zero_takes_the_most_likely() -> None:
    assert set(draws(GREEDY)) == {0}


def test_draws_follow_the_softmax() -> None:
    found = draws(SamplingParams(temperature=1.0), count=20_000)
    expected = mx.softmax(LOGITS[0]).tolist()
    for token, probability in enumerate(expected):
        spread = math.sqrt(probability * (1 - probability) / 20_000)
        assert abs(found.count(token) / 20_000 - probability) < 5 * spread + 1e-4


def test_a_higher_temperature_spreads_draws() -> None:
    assert draws(SamplingParams(temperature=5.0)).count(0) < draws(SamplingParams(temperature=0.5)).count(0)


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        (SamplingParams(temperature=3.0, top_k=2), {0, 1}),
        (SamplingParams(temperature=1.0, top_k=1), {0}),
        # Probabilities are 0.64, 0.24, 0.09, 0.03: two tokens reach 0.8.
        (SamplingParams(temperature=1.0, top_p=0.8), {0, 1}),
        (SamplingParams(temperature=1.0, top_p=0.0), {0}),
        # e**-2 is 0.135 of the best.
        (SamplingParams(temperature=1.0, min_p=0.1), {0, 1, 2}),
        (SamplingParams(temperature=1.0, min_p=1.0), {0}),
        (SamplingParams(temperature=1.0, top_k=3, top_p=0.8), {0, 1}),
        (SamplingParams(temperature=1.0, top_k=99), {0, 1, 2, 3}),
    ],
)
def test_filters_exclude_the_unlikely(params: SamplingParams, allowed: set[int]) -> None:
    assert set(draws(params)) <= allowed
    assert len(allowed) == 1 or len(set(draws(params))) > 1


def test_a_row_draws_the_same_in_any_company() -> None:
    vocab = 50
    logits = mx.random.normal((3, vocab), key=mx.random.key(1))
    params = [
        SamplingParams(temperature=0.8, seed=1),
        SamplingParams(temperature=1.3, top_p=0.7, top_k=9, seed=2),
        GREEDY,
    ]
    keys = random_keys([1, 2, 3], [10, 20, 30])
    together = sample(logits, params, keys).tolist()
    alone = [
        sample(logits[row : row + 1], params[row : row + 1], keys[row : row + 1]).item() for row in range(3)
    ]
    assert together == alone


def test_keys_differ_by_seed_and_by_index() -> None:
    keys = random_keys([1, 1, 2, 2], [0, 1, 0, 1]).tolist()
    assert len({tuple(key) for key in keys}) == 4


def test_any_integer_is_a_seed() -> None:
    assert random_keys([-1, 0, 1 << 80], [0, 0, 0]).shape == (3, 2)


def test_seen_tokens_become_less_likely_whatever_their_sign() -> None:
    logits = mx.array([[2.0, -2.0, 1.0, -1.0]])
    seen = mx.array([[True, True, False, False]])
    assert penalise(logits, seen, mx.array([[2.0]])).tolist() == [[1.0, -4.0, 1.0, -1.0]]


def test_greedy_keeps_the_batch() -> None:
    assert greedy(mx.array([[0.0, 1.0], [1.0, 0.0]])).tolist() == [1, 0]
