"""Drawing the next tokens of a batch on the device, each row by its own parameters."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from engine.core.request import SamplingParams


def greedy(logits: mx.array) -> mx.array:
    """The most likely token of each row: `(batch, vocab)` to `(batch,)`."""
    return mx.argmax(logits, axis=-1)


def sample(logits: mx.array, params: Sequence[SamplingParams], keys: mx.array) -> mx.array:
    """One token for each row of `logits` `(batch, vocab)`; returns `(batch,)`.

    Temperature is applied first, then the filters `top_k`, `top_p` and `min_p`, each on the tempered
    distribution. Rows with temperature 0 take the most likely token.

    Args:
        keys: `(batch, 2)` uint32, from `random_keys`. A row's draw depends on its own key only.
    """
    if all(p.temperature == 0 for p in params):
        return greedy(logits)
    temperature = _column([p.temperature or 1.0 for p in params])
    tempered = _filtered(logits.astype(mx.float32) / temperature, params)
    drawn = mx.argmax(tempered + _gumbel(keys, logits.shape[-1]), axis=-1)
    is_greedy = mx.array([p.temperature == 0 for p in params])
    return mx.where(is_greedy, greedy(logits), drawn)


def random_keys(seeds: Sequence[int], indices: Sequence[int]) -> mx.array:
    """A key `(batch, 2)` uint32 for each row: the same seed and token index always give the same one."""
    words = [_mix(_mix(seed) + index) for seed, index in zip(seeds, indices, strict=True)]
    return mx.array([[word >> 32, word & 0xFFFFFFFF] for word in words], dtype=mx.uint32)


def _mix(value: int) -> int:
    """Spreads neighbouring integers over 64 bits. Source: Steele et al., "Fast splittable pseudorandom
    number generators" (2014), SplitMix64.
    """
    mask = (1 << 64) - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


def _gumbel(keys: mx.array, vocab: int) -> mx.array:
    """Noise `(batch, vocab)` whose argmax over logits draws from their softmax."""
    return mx.vmap(lambda key: mx.random.gumbel((vocab,), key=key))(keys)


def _column(values: Sequence[float]) -> mx.array:
    return mx.array(list(values), dtype=mx.float32)[:, None]


def _filtered(logits: mx.array, params: Sequence[SamplingParams]) -> mx.array:
    """Logits with everything that a row's filters exclude at minus infinity."""
    floor = mx.full((len(params), 1), -mx.inf)
    if any(p.top_k > 0 or p.top_p < 1 for p in params):
        floor = _top_floor(logits, params)
    if any(p.min_p > 0 for p in params):
        # log(0) is minus infinity: rows without min_p keep everything.
        best = mx.max(logits, axis=-1, keepdims=True)
        floor = mx.maximum(floor, best + mx.log(_column([p.min_p for p in params])))
    return mx.where(logits < floor, -mx.inf, logits)


def _top_floor(logits: mx.array, params: Sequence[SamplingParams]) -> mx.array:
    """The smallest logit `(batch, 1)` that `top_k` and `top_p` leave in each row."""
    vocab = logits.shape[-1]
    descending = -mx.sort(-logits, axis=-1)
    top_k = _column([p.top_k if p.top_k > 0 else vocab for p in params])
    kept = mx.arange(vocab)[None] < top_k
    probabilities = mx.softmax(mx.where(kept, descending, -mx.inf), axis=-1)
    mass_before = mx.cumsum(probabilities, axis=-1) - probabilities
    # Rows without top_p must not lose their tail to the rounding of a sum that should be 1.
    top_p = _column([p.top_p if p.top_p < 1 else 2.0 for p in params])
    kept = kept & (mass_before < top_p)
    last = mx.maximum(mx.sum(kept, axis=-1, keepdims=True) - 1, 0)
    return mx.take_along_axis(descending, last, axis=-1)


def penalise(logits: mx.array, seen: mx.array, penalties: mx.array) -> mx.array:
    """Makes tokens a row has seen less likely.

    Args:
        logits: `(batch, vocab)`.
        seen: `(batch, vocab)` bool.
        penalties: `(batch, 1)`; 1 changes nothing.

    Source: Keskar et al., "CTRL" (2019), section 4.1; negative logits are multiplied, as is usual since.
    """
    weakened = mx.where(logits < 0, logits * penalties, logits / penalties)
    return mx.where(seen, weakened, logits)
