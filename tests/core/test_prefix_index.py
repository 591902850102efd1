from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.digests import BLOCK_TOKENS, PromptDigests
from engine.core.executor import CheckpointSizes
from engine.core.prefix_index import PrefixIndex

PLAIN = CheckpointSizes(token_bytes=10)
WINDOWED = CheckpointSizes(token_bytes=4, windows=((16, 6),), state_bytes=50)

# Prompts of blocks from a small alphabet, cut anywhere: many share prefixes, some are prefixes of others.
prompts = st.builds(
    lambda blocks, cut: [token for b in blocks for token in [b] * BLOCK_TOKENS][: -cut or None],
    st.lists(st.integers(0, 2), min_size=1, max_size=6),
    st.integers(0, BLOCK_TOKENS - 1),
)
actions = st.lists(
    st.tuples(
        st.sampled_from(["add", "add shared", "find", "resize"]), prompts, st.floats(0, 1)
    ),
    max_size=60,
)  # fmt: skip


def filled(*prompts: list[int], max_bytes: int = 1 << 30, shared: bool = False) -> PrefixIndex:
    index = PrefixIndex(PLAIN, max_bytes)
    for prompt in prompts:
        index.add(PromptDigests(prompt), len(prompt), shared)
    return index


def found(index: PrefixIndex, prompt: list[int]) -> int:
    hit = index.find(PromptDigests(prompt), len(prompt) - 1)
    return hit.num_tokens if hit else 0


@given(st.sampled_from([PLAIN, WINDOWED]), actions)
def test_the_budget_holds_and_a_hit_is_a_prefix_that_is_held(
    sizes: CheckpointSizes, acts: list[tuple[str, list[int], float]]
) -> None:
    index = PrefixIndex(sizes, 3000)
    held: dict[int, list[int]] = {}
    num_bytes: dict[int, int] = {}
    for act, prompt, share in acts:
        digests = PromptDigests(prompt)
        evicted: tuple[int, ...] = ()
        if act.startswith("add"):
            length = max(1, int(share * len(prompt)))
            added = index.add(digests, length, act == "add shared")
            if added:
                evicted = added.evicted
                held[added.checkpoint.id] = prompt[:length]
                num_bytes[added.checkpoint.id] = added.checkpoint.num_bytes
                parents = [c.id for c in added.checkpoint.chain()]
                assert not set(parents) & set(evicted)
        elif act == "resize":
            evicted = index.resize(int(share * 5000))
        elif hit := index.find(digests, len(prompt) - 1):
            prefix = held[hit.checkpoint.id]
            assert hit.num_tokens < len(prompt)
            assert prefix[: hit.num_tokens] == prompt[: hit.num_tokens]
            assert sizes.divisible or hit.num_tokens == len(prefix)
            assert all(c.id in held for c in hit.checkpoint.chain())
            index.use(hit)
        for gone in evicted:
            del held[gone], num_bytes[gone]
        assert index.num_bytes == sum(num_bytes.values()) <= index.max_bytes
        assert len(index) == len(held)


@given(st.lists(prompts, max_size=8), prompts)
def test_the_longest_held_prefix_is_found(held: list[list[int]], prompt: list[int]) -> None:
    index = filled(*held)
    digests = PromptDigests(prompt)
    common = max((shared_tokens(h, prompt) for h in held), default=0)
    whole = max((len(h) for h in held if h == prompt[: len(h)] and len(h) < len(prompt)), default=0)
    blocks = min(common, len(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    hit = index.find(digests, len(prompt) - 1)
    assert (hit.num_tokens if hit else 0) == max(whole, blocks)


def shared_tokens(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@given(prompts, prompts)
def test_common_tokens_are_whole_blocks_of_what_is_common(one: list[int], other: list[int]) -> None:
    common = PromptDigests(one).common_tokens(PromptDigests(other))
    assert common == shared_tokens(one, other) // BLOCK_TOKENS * BLOCK_TOKENS


def test_a_longer_checkpoint_takes_only_what_it_adds() -> None:
    index = filled([1] * 100, [1] * 160)
    assert index.num_bytes == 160 * PLAIN.token_bytes


def test_what_others_build_on_stays_and_one_off_tails_go_first() -> None:
    system = [1] * 100
    index = filled(system, shared=True, max_bytes=4000)
    for user in range(2, 30):
        prompt = system + [user] * 100
        index.add(PromptDigests(prompt), len(prompt))
    assert found(index, [*system, 0]) == 100
    assert index.num_bytes <= 4000
    assert index.num_evictions > 20


def test_a_shared_prefix_outlives_newer_prompts_that_nobody_shares() -> None:
    index = filled([1] * 100, shared=True, max_bytes=4000)
    for other in range(2, 30):
        index.add(PromptDigests([other] * 100), 100)
    assert found(index, [1] * 101) == 100


def test_shared_prefixes_go_too_when_they_are_long_unused_and_others_are_shared_now() -> None:
    index = filled([1] * 100, shared=True, max_bytes=3000)
    for other in range(2, 10):
        index.add(PromptDigests([other] * 100), 100, shared=True)
    assert found(index, [1] * 101) == 0
    assert found(index, [9] * 101) == 100


def test_what_can_never_fit_drives_nothing_out() -> None:
    index = filled([1] * 100, max_bytes=2000)
    assert index.add(PromptDigests([2] * 300), 300) is None
    assert found(index, [1] * 101) == 100


def test_no_room_holds_nothing() -> None:
    index = filled([1] * 100, max_bytes=0)
    assert (len(index), index.num_bytes) == (0, 0)
