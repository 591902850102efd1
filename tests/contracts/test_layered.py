"""What every executor owes a scheduler that spreads a pass over steps: the tokens of a pass done at once."""

from __future__ import annotations

import pytest

from engine.core.executor import Executor
from engine.core.plan import Keep, PrefillChunk, Restore
from engine.core.request import Request, SamplingParams
from tests.contracts.driver import Driver, chunks_of, make_request, random_prompt, shares_of, tokens_alone

SEEDED = SamplingParams(temperature=0.9, top_p=0.95, top_k=40, min_p=0.01, repetition_penalty=1.1, seed=7)
BOTH_WAYS = pytest.mark.parametrize("sampling", [SamplingParams(), SEEDED], ids=["greedy", "seeded"])


def shares(
    executor: Executor,
    request: Request,
    pass_tokens: int = 64,
    step_layers: int = 1,
    start: int = 0,
    end: int | None = None,
) -> list[PrefillChunk]:
    assert executor.info.num_layers > 1
    return shares_of(request, pass_tokens, executor.info.num_layers, step_layers, start, end)


@BOTH_WAYS
@pytest.mark.parametrize(("pass_tokens", "step_layers"), [(150, 1), (150, 2), (64, 1), (40, 9)])
def test_tokens_do_not_depend_on_how_a_pass_is_spread(
    executor: Executor, sampling: SamplingParams, pass_tokens: int, step_layers: int
) -> None:
    request = make_request("a", random_prompt(1, 150), sampling=sampling)
    alone = tokens_alone(executor, request)
    driver = Driver(executor)
    driver.start(request)
    for chunk in shares(executor, request, pass_tokens, step_layers):
        driver.prefill(chunk)
    driver.decode("a", steps=15)
    driver.release("a")
    assert driver.finish() == {"a": alone}


@BOTH_WAYS
def test_rows_write_and_prompts_are_read_beside_a_pass(executor: Executor, sampling: SamplingParams) -> None:
    lengths = {"a": 33, "b": 120, "c": 45, "d": 20}
    requests = {i: make_request(i, random_prompt(n, n), 40, sampling) for i, n in lengths.items()}
    alone = {request.id: tokens_alone(executor, request) for request in requests.values()}
    driver = Driver(executor)
    driver.read(requests["a"])
    driver.start(requests["b"], requests["c"], requests["d"])
    first, *others = shares(executor, requests["b"])
    driver.step(("a",), (first, *chunks_of(requests["d"], 20)))
    for share, chunk in zip(others, shares(executor, requests["c"], 45), strict=False):
        driver.step(("a", "d"), (share, chunk))
    for share in others[executor.info.num_layers :]:
        driver.step(("a", "d", "c"), (share,))
    driver.decode("c", "b", "a", "d", steps=5)
    driver.release("a", "b", "c", "d")
    for request_id, tokens in driver.finish().items():
        assert len(tokens) >= 6
        assert tokens == alone[request_id][: len(tokens)]


def test_a_pass_goes_on_after_a_chunk_and_a_chunk_after_a_pass(executor: Executor) -> None:
    request = make_request("a", random_prompt(1, 150))
    alone = tokens_alone(executor, request)
    driver = Driver(executor)
    driver.start(request)
    for chunk in (
        *chunks_of(request, 30, end=30),
        *shares(executor, request, 70, start=30, end=100),
        *chunks_of(request, 20, start=100),
    ):
        driver.prefill(chunk)
    driver.decode("a", steps=15)
    driver.release("a")
    assert driver.finish() == {"a": alone}


def test_a_row_can_be_released_in_the_middle_of_its_pass(executor: Executor) -> None:
    requests = [make_request(i, random_prompt(n, n)) for i, n in (("a", 20), ("b", 150))]
    alone = {request.id: tokens_alone(executor, request) for request in requests}
    driver = Driver(executor)
    driver.read(requests[0])
    driver.start(requests[1])
    driver.step(("a",), (shares(executor, requests[1], 150)[0],))
    driver.release("b")
    driver.decode("a", steps=14)
    driver.release("a")
    assert driver.finish()["a"] == alone["a"]
    driver = Driver(executor)
    driver.start(requests[1])
    for chunk in shares(executor, requests[1], 150):
        driver.prefill(chunk)
    driver.decode("b", steps=15)
    driver.release("b")
    assert driver.finish()["b"] == alone["b"]


def test_a_checkpoint_is_taken_after_a_pass_and_a_pass_begins_at_one(executor: Executor) -> None:
    prefix = random_prompt(5, 100)
    first, second = (make_request(i, prefix + random_prompt(n, n)) for i, n in (("a", 30), ("b", 50)))
    alone = {request.id: tokens_alone(executor, request) for request in (first, second)}
    driver = Driver(executor)
    driver.start(first)
    for chunk in shares(executor, first, 100, end=100):
        driver.prefill(chunk)
    executor.keep(Keep("a", 1, 0, 100, None))
    for chunk in shares(executor, first, 30, start=100):
        driver.prefill(chunk)
    driver.start(second)
    executor.restore(Restore("b", 1, 100))
    for chunk in shares(executor, second, 50, start=100):
        driver.prefill(chunk)
    driver.decode("a", "b", steps=15)
    driver.release("a", "b")
    assert driver.finish() == alone
    executor.drop(1)
