"""The contract's promises on the default model, whose logits come closer to ties than a tiny model's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from engine.core.request import SamplingParams
from engine.mlx_backend.executor import MlxExecutor
from engine.mlx_backend.model import LoadedModel, load_model
from loadtests.synthesis.lexicon import Tokens, learn
from loadtests.synthesis.prompts import build_prompts
from loadtests.traffic.schedule import ScheduledRequest
from tests.contracts.driver import Driver, all_equal, make_request, random_prompt, tokens_alone

pytestmark = pytest.mark.model

SAMPLINGS = {
    "greedy": SamplingParams(),
    "seeded": SamplingParams(temperature=0.8, top_p=0.95, seed=3),
}


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model()


@pytest.fixture(scope="module")
def executor(loaded: LoadedModel) -> Iterator[MlxExecutor]:
    executor = MlxExecutor(loaded)
    yield executor
    executor.close()


def test_it_knows_the_capital_of_france(loaded: LoadedModel, executor: MlxExecutor) -> None:
    prompt = loaded.tokenizer.encode_chat([{"role": "user", "content": "What is the capital of France?"}])
    tokens = tokens_alone(executor, make_request("a", prompt, max_tokens=8))
    assert loaded.tokenizer.decode(tokens) == "The capital of France is Paris."
    assert tokens[-1] in loaded.tokenizer.eos_tokens


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_tokens_do_not_depend_on_the_chunk_size(executor: MlxExecutor, sampling: SamplingParams) -> None:
    request = make_request("a", random_prompt(1, 70, vocab=49_000), 8, sampling)
    assert all_equal(tokens_alone(executor, request, size) for size in (None, 1, 7, 64, 512))


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_tokens_do_not_depend_on_company(executor: MlxExecutor, sampling: SamplingParams) -> None:
    requests = [make_request(i, random_prompt(n, n, 49_000), 12, sampling) for i, n in (("a", 40), ("b", 99))]
    alone = {request.id: tokens_alone(executor, request) for request in requests}
    driver = Driver(executor)
    for request in requests:
        driver.read(request, 32)
    driver.decode("a", "b", steps=11)
    driver.release("a", "b")
    assert driver.finish() == alone


def test_synthetic_conversations_have_exactly_the_planned_tokens(loaded: LoadedModel) -> None:
    def tokenize(texts: Sequence[str]) -> Tokens:
        roles = ("user", "assistant")
        messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
        ids = loaded.tokenizer.encode_chat(messages)
        return Tokens(len(ids), ids)

    names = tuple(f"block {n}" for n in range(20))
    turns = [
        ScheduledRequest(
            id=f"turn {n}", at_s=0.0, prompt_tokens=tokens, max_tokens=40, prompt_seed=1, prefix=names,
            prefix_block_tokens=64, after=f"turn {n - 1}" if n else None,
        )
        for n, tokens in enumerate((100, 319, 700, 1280))
    ]  # fmt: skip
    turns = [replace(turn, prefix=names[: -(-turn.prompt_tokens // 64)]) for turn in turns]
    made = build_prompts(turns, learn(tokenize)).values()
    encoded = [tokenize(prompt.messages).ids for prompt in made]
    assert [len(ids) for ids in encoded] == [100, 319, 700, 1280]
    assert [len(prompt.messages) for prompt in made] == [1, 3, 5, 7]
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(encoded))
