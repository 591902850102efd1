"""What every executor owes the prefix cache: a row restored from a checkpoint goes on as if it had read."""

from __future__ import annotations

import pytest

from engine.core.executor import Executor
from engine.core.plan import Keep, Restore
from engine.core.request import SamplingParams
from tests.contracts.driver import Driver, chunks_of, make_request, random_prompt, tokens_alone

SEEDED = SamplingParams(temperature=0.9, top_p=0.95, top_k=40, min_p=0.01, repetition_penalty=1.1, seed=7)
PREFIX = random_prompt(5, 100)
FIRST = make_request("first", PREFIX + random_prompt(6, 30))
SECOND = make_request("second", PREFIX + random_prompt(7, 50), sampling=SEEDED)
CHUNK_SIZES = pytest.mark.parametrize("chunk_tokens", [7, 64])


def read_and_keep(driver: Driver, chunk_tokens: int = 64) -> None:
    """Reads the first request, with checkpoints 1 and 2 at 40 and 100 tokens, the second on the first."""
    driver.start(FIRST)
    for start, end in ((0, 40), (40, 100), (100, 130)):
        for chunk in chunks_of(FIRST, chunk_tokens, start, end):
            driver.prefill(chunk)
        if end == 40:
            driver.executor.keep(Keep("first", 1, 0, 40, None))
        elif end == 100:
            driver.executor.keep(Keep("first", 2, 40, 100, 1))


def read_restored(driver: Driver, checkpoint: int, num_tokens: int, chunk_tokens: int = 64) -> None:
    driver.start(SECOND)
    driver.executor.restore(Restore("second", checkpoint, num_tokens))
    for chunk in chunks_of(SECOND, chunk_tokens, num_tokens):
        driver.prefill(chunk)


@CHUNK_SIZES
@pytest.mark.parametrize(("checkpoint", "num_tokens"), [(1, 40), (2, 100)])
def test_a_restored_row_writes_what_it_would_have_written(
    executor: Executor, chunk_tokens: int, checkpoint: int, num_tokens: int
) -> None:
    alone = tokens_alone(executor, SECOND)
    driver = Driver(executor)
    read_and_keep(driver, chunk_tokens)
    read_restored(driver, checkpoint, num_tokens, chunk_tokens)
    driver.decode("second", steps=15)
    driver.release("first", "second")
    assert driver.finish()["second"] == alone
    executor.drop(2)
    executor.drop(1)


@CHUNK_SIZES
def test_a_checkpoint_that_can_be_divided_serves_shorter_prefixes(
    executor: Executor, chunk_tokens: int
) -> None:
    sizes = executor.info.checkpoints
    assert sizes is not None
    if not sizes.divisible:
        pytest.skip("its checkpoints serve no shorter prefix")
    alone = tokens_alone(executor, SECOND)
    for num_tokens in (32, 40, 64, 99):
        driver = Driver(executor)
        read_and_keep(driver, chunk_tokens)
        read_restored(driver, 2, num_tokens, chunk_tokens)
        driver.decode("second", steps=15)
        driver.release("first", "second")
        assert driver.finish()["second"] == alone
        executor.drop(2)
        executor.drop(1)


def test_whoever_was_read_goes_on_undisturbed_beside_whoever_was_restored(executor: Executor) -> None:
    first, second = tokens_alone(executor, FIRST), tokens_alone(executor, SECOND)
    driver = Driver(executor)
    read_and_keep(driver)
    driver.decode("first", steps=3)
    read_restored(driver, 2, 100)
    driver.decode("first", "second", steps=12)
    driver.decode("second", steps=3)
    driver.release("first", "second")
    assert driver.finish() == {"first": first, "second": second}
    executor.drop(2)
    executor.drop(1)


def test_checkpoints_outlive_the_row_they_are_of_and_rows_outlive_checkpoints(executor: Executor) -> None:
    alone = tokens_alone(executor, SECOND)
    driver = Driver(executor)
    read_and_keep(driver)
    driver.release("first")
    read_restored(driver, 2, 100)
    executor.drop(2)
    executor.drop(1)
    driver.decode("second", steps=15)
    driver.release("second")
    assert driver.finish()["second"] == alone


def test_many_rows_start_from_one_checkpoint(executor: Executor) -> None:
    alone = tokens_alone(executor, SECOND)
    driver = Driver(executor)
    read_and_keep(driver)
    for _ in range(3):
        read_restored(driver, 2, 100)
        driver.decode("second", steps=15)
        driver.release("second")
        assert driver.finish()["second"] == alone
    driver.release("first")
    executor.drop(2)
    executor.drop(1)


def test_a_restored_row_can_be_kept_again(executor: Executor) -> None:
    longer = make_request("longer", list(SECOND.prompt) + random_prompt(8, 40))
    alone = tokens_alone(executor, longer)
    driver = Driver(executor)
    read_and_keep(driver)
    read_restored(driver, 2, 100)
    executor.keep(Keep("second", 3, 100, 150, 2))
    driver.release("first", "second")
    driver.start(longer)
    executor.restore(Restore("longer", 3, 150))
    for chunk in chunks_of(longer, 64, 150):
        driver.prefill(chunk)
    driver.decode("longer", steps=15)
    driver.release("longer")
    assert driver.finish()["longer"] == alone
    for checkpoint in (3, 2, 1):
        executor.drop(checkpoint)
