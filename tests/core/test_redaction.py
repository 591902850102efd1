from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.redaction import BLOCK_CHARS, BLOCK_TOKENS, Redactor

ONE, OTHER = Redactor(b"1" * 16), Redactor(b"2" * 16)
_tokens = st.lists(st.integers(0, 200_000), max_size=300)


@given(_tokens, _tokens, _tokens)
def test_hashes_are_shared_exactly_as_far_as_whole_blocks_are(
    common: list[int], one: list[int], other: list[int]
) -> None:
    left, right = [*common, *one], [*common, *other]
    pairs = zip(ONE.hashes(left), ONE.hashes(right), strict=False)
    for number, (a, b) in enumerate(pairs):
        end = (number + 1) * BLOCK_TOKENS
        assert (a == b) == (left[:end] == right[:end])


@given(st.one_of(_tokens, st.text(max_size=900)))
def test_there_is_a_hash_for_every_block_and_none_under_another_salt(prompt: list[int] | str) -> None:
    block = BLOCK_CHARS if isinstance(prompt, str) else BLOCK_TOKENS
    hashes = list(ONE.hashes(prompt))
    assert len(hashes) == -(-len(prompt) // block)
    assert not set(hashes) & set(OTHER.hashes(prompt))


def test_half_a_surrogate_pair_is_a_character_like_any_other() -> None:
    assert list(ONE.hashes("\ud800")) != list(ONE.hashes("\ud801"))
    assert ONE.pseudonym("\ud800")


def test_a_pseudonym_is_of_its_names_and_of_nobody_else() -> None:
    assert ONE.pseudonym("ada") == ONE.pseudonym("ada") != OTHER.pseudonym("ada")
    assert len({ONE.pseudonym("ada", "1"), ONE.pseudonym("ada1"), ONE.pseudonym("bob", "1")}) == 3
    assert ONE.salt_id != OTHER.salt_id
