"""What every executor owes the scheduler."""

from __future__ import annotations

import pytest

from engine.core.executor import Executor
from engine.core.request import SamplingParams
from tests.contracts.driver import Driver, all_equal, chunks_of, make_request, random_prompt, tokens_alone

SEEDED = SamplingParams(temperature=0.9, top_p=0.95, top_k=40, min_p=0.01, repetition_penalty=1.1, seed=7)
BOTH_WAYS = pytest.mark.parametrize("sampling", [SamplingParams(), SEEDED], ids=["greedy", "seeded"])


@BOTH_WAYS
def test_tokens_do_not_depend_on_the_chunk_size(executor: Executor, sampling: SamplingParams) -> None:
    request = make_request("a", random_prompt(1, 150), sampling=sampling)
    assert all_equal(tokens_alone(executor, request, size) for size in (None, 1, 7, 64, 512))


@BOTH_WAYS
def test_tokens_do_not_depend_on_company(executor: Executor, sampling: SamplingParams) -> None:
    lengths = {"a": 40, "b": 3, "c": 97}
    requests = [make_request(i, random_prompt(n, n), sampling=sampling) for i, n in lengths.items()]
    alone = {request.id: tokens_alone(executor, request) for request in requests}
    driver = Driver(executor)
    for request in requests:
        driver.read(request)
    driver.decode("a", "b", "c", steps=15)
    driver.release("a", "b", "c")
    assert driver.finish() == alone


@BOTH_WAYS
def test_rows_join_and_leave_in_the_middle(executor: Executor, sampling: SamplingParams) -> None:
    first, second, third = (
        make_request(i, random_prompt(n, n), sampling=sampling) for i, n in (("a", 33), ("b", 120), ("c", 5))
    )
    alone = {request.id: tokens_alone(executor, request) for request in (first, second, third)}
    driver = Driver(executor)
    driver.read(first)
    driver.start(second, third)
    for chunk in chunks_of(second, 50):
        driver.decode("a")
        driver.prefill(chunk)
    driver.step(("b", "a"), tuple(chunks_of(third, 100)))
    driver.decode("a", "c", "b", steps=3)
    driver.decode("c", "b", steps=2)
    driver.release("b")
    driver.decode("a", "c", steps=8)
    driver.decode("c", steps=2)
    driver.release("a", "c")
    found = driver.finish()
    assert found["a"] == alone["a"][:16]
    assert found["b"] == alone["b"][: len(found["b"])]
    assert found["c"] == alone["c"][: len(found["c"])]
    assert [len(found[i]) for i in "abc"] == [16, 7, 16]


@BOTH_WAYS
@pytest.mark.parametrize("chunk_tokens", [1, 7, 64, 512])
def test_rows_write_beside_chunks(executor: Executor, sampling: SamplingParams, chunk_tokens: int) -> None:
    lengths = {"a": 33, "b": 120, "c": 45}
    first, second, third = (
        make_request(i, random_prompt(n, n), max_tokens=24, sampling=sampling) for i, n in lengths.items()
    )
    alone = {request.id: tokens_alone(executor, request) for request in (first, second, third)}
    driver = Driver(executor)
    driver.read(first)
    driver.start(second, third)
    for chunk in chunks_of(second, max(chunk_tokens, 6)):
        driver.step(("a",), (chunk,))
    for chunk in chunks_of(third, max(chunk_tokens, 3)):
        driver.step(("b",), (chunk,))
    driver.step(("c", "b", "a"))
    driver.release("a", "b", "c")
    found = driver.finish()
    for request_id, tokens in found.items():
        assert tokens[:24] == alone[request_id][: len(tokens)]
        assert len(tokens) >= 2


def test_chunks_of_several_prompts_share_a_step_with_rows(executor: Executor) -> None:
    lengths = {"a": 20, "b": 31, "c": 9, "d": 50}
    requests = {i: make_request(i, random_prompt(n, n)) for i, n in lengths.items()}
    alone = {request.id: tokens_alone(executor, request) for request in requests.values()}
    driver = Driver(executor)
    driver.read(requests["a"])
    driver.start(requests["b"], requests["c"], requests["d"])
    halves = chunks_of(requests["d"], 25)
    driver.step(("a",), (*chunks_of(requests["b"], 31), halves[0], *chunks_of(requests["c"], 9)))
    driver.step(("a", "c"), (halves[1],))
    driver.step(("d", "b"))
    driver.release("a", "b", "c", "d")
    for request_id, tokens in driver.finish().items():
        assert tokens == alone[request_id][: len(tokens)]


def test_several_prompts_are_read_in_one_step(executor: Executor) -> None:
    requests = [make_request(i, random_prompt(n, n)) for i, n in (("a", 20), ("b", 31), ("c", 9))]
    alone = [tokens_alone(executor, request)[0] for request in requests]
    driver = Driver(executor)
    driver.start(*requests)
    whole = [chunks_of(request, 64)[0] for request in requests]
    half = chunks_of(requests[1], 16)
    ticket = executor.launch((), (whole[0], half[0], whole[2]))
    assert executor.wait(ticket) == (alone[0], alone[2])
    assert executor.wait(executor.launch((), (half[1],))) == (alone[1],)
    driver.release("a", "b", "c")


@pytest.mark.parametrize("lengths", [(20, 9, 1, 5, 1), (20, 1, 7), (1, 1, 20)])
def test_prompts_of_one_token_end_in_a_step_beside_rows_and_longer_ones(
    executor: Executor, lengths: tuple[int, ...]
) -> None:
    writer, *requests = (make_request(f"r{i}", random_prompt(i, n)) for i, n in enumerate((30, *lengths)))
    alone = {request.id: tokens_alone(executor, request) for request in (writer, *requests)}
    driver = Driver(executor)
    driver.read(writer)
    driver.start(*requests)
    whole = tuple(chunk for request in requests for chunk in chunks_of(request, 32))
    driver.step((writer.id,), whole)
    driver.decode(*alone, steps=5)
    driver.release(*alone)
    for request_id, tokens in driver.finish().items():
        assert tokens == alone[request_id][: len(tokens)]


def test_a_chunk_that_completes_nothing_returns_no_token(executor: Executor) -> None:
    request = make_request("a", random_prompt(2, 30))
    executor.start(request)
    assert executor.wait(executor.launch((), (chunks_of(request, 10)[0],))) == ()
    executor.release("a")


def test_tokens_come_in_the_order_of_the_rows(executor: Executor) -> None:
    requests = [make_request(i, random_prompt(n, n)) for i, n in (("a", 20), ("b", 31))]
    alone = {request.id: tokens_alone(executor, request) for request in requests}
    driver = Driver(executor)
    for request in requests:
        driver.read(request)
    driver.finish()
    assert executor.wait(executor.launch(("b", "a"), ())) == (alone["b"][1], alone["a"][1])
    driver.release("a", "b")


def test_released_rows_still_answer_for_launched_steps(executor: Executor) -> None:
    requests = [make_request(i, random_prompt(n, n)) for i, n in (("a", 20), ("b", 31))]
    alone = {request.id: tokens_alone(executor, request) for request in requests}
    driver = Driver(executor)
    for request in requests:
        driver.read(request)
    driver.finish()
    launched = executor.launch(("a", "b"), ())
    executor.release("a")
    following = executor.launch(("b",), ())
    assert len(executor.wait(launched)) == 2
    assert executor.wait(following) == (alone["b"][2],)
    driver.release("b")


def test_an_id_can_be_used_again_after_release(executor: Executor) -> None:
    request = make_request("a", random_prompt(3, 25))
    assert tokens_alone(executor, request) == tokens_alone(executor, request)


def test_releasing_an_unknown_row_is_ignored(executor: Executor) -> None:
    executor.release("never started")


def test_prompts_may_be_one_token(executor: Executor) -> None:
    assert len(tokens_alone(executor, make_request("a", [5], max_tokens=3))) == 3


def test_a_model_says_what_it_can_hold(executor: Executor) -> None:
    assert executor.info.context_tokens == 2048
    assert executor.info.kv_capacity_tokens >= executor.info.context_tokens
