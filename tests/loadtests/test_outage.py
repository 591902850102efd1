from __future__ import annotations

import pytest

from engine.core.records import Outcome, RequestRecord
from loadtests.outage import outage


def record(outcome: Outcome, status: int | None = None, at_s: float = 1.0) -> RequestRecord:
    return RequestRecord(
        id="a",
        scheduled_at_s=0.0,
        planned_prompt_tokens=10,
        max_tokens=4,
        outcome=outcome,
        ended_at_s=at_s,
        http_status=status,
        error="cannot connect" if status is None else f"HTTP {status}",
    )


COMPLETED = record(Outcome.COMPLETED, 200)
REFUSED = record(Outcome.REFUSED, 429)
UNANSWERED = record(Outcome.FAILED)


@pytest.mark.parametrize(
    "records",
    [[COMPLETED], [REFUSED], [COMPLETED, REFUSED], [COMPLETED, record(Outcome.FAILED, 500)]],
    ids=["served", "all refused", "some refused", "an answer that is an error"],
)
def test_what_a_server_answered_is_a_result(records: list[RequestRecord]) -> None:
    assert outage(records, answers_now=True) is None


def test_a_server_that_does_not_answer_any_more_has_failed_the_run() -> None:
    cut = record(Outcome.FAILED, 200, at_s=3.5)
    said = outage([COMPLETED, COMPLETED, record(Outcome.FAILED, at_s=7.0), cut], answers_now=False)
    assert said is not None
    assert "2 of 4 requests (50%) failed, the first 3.5 s after the start" in said
    assert "died or was stopped" in said


def test_a_server_that_stopped_after_the_last_answer_has_failed_nothing() -> None:
    assert outage([COMPLETED, REFUSED], answers_now=False) is None


def test_one_dropped_connection_in_twenty_is_a_result_and_more_are_not() -> None:
    assert outage([UNANSWERED, *[COMPLETED] * 19], answers_now=True) is None
    said = outage([UNANSWERED, *[COMPLETED] * 18], answers_now=True)
    assert said is not None
    assert "1 of 19 requests (5%) got no answer at all (the first: cannot connect)" in said
    assert "restarted" in said


def test_a_run_in_which_all_failed_says_what_the_first_met() -> None:
    said = outage([record(Outcome.FAILED, 400), record(Outcome.NEVER_SENT)], answers_now=True)
    assert said == "1 of 2 requests (50%) failed and none succeeded (the first: HTTP 400)"
