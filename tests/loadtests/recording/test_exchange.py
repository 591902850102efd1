from __future__ import annotations

import json

import pytest

from engine.core.trace import TraceOriginal
from loadtests.recording.exchange import Exchange, Outcome
from loadtests.selftest.scripted_server import COMMENT, DONE, ROLE_ONLY, event, text

STREAM = {"content-type": "text/event-stream; charset=utf-8", "x-config-generation": "4"}
FINISH = event({}, finish="stop")
ID = "chatcmpl-" + "0f" * 16


def stream(*pieces: tuple[float, bytes], headers: dict[str, str] | None = None) -> Exchange:
    """An exchange that arrived at 1.0 and has streamed so far."""
    exchange = Exchange(b"{}", headers or {}, 1.0)
    exchange.on_head(200, STREAM)
    for at_s, data in pieces:
        exchange.on_bytes(data, at_s)
    return exchange


def whole(status: int, body: object) -> Exchange:
    exchange = Exchange(b"{}", {}, 1.0)
    exchange.on_head(status, {"content-type": "application/json"})
    raw = json.dumps(body).encode()
    exchange.on_bytes(raw[:9], 2.0)
    exchange.on_bytes(raw[9:], 2.5)
    exchange.on_end(3.0)
    return exchange


def test_first_content_and_worst_pause_are_of_content_events_alone() -> None:
    usage = event(None, usage_tokens=3, prompt_tokens=9)
    exchange = stream(
        (1.5, ROLE_ONLY), (2.0, text()), (2.25, text()[:7]), (2.5, text()[7:]), (3.0, COMMENT), (4.0, text()),
        (9.0, FINISH + usage + DONE),
    )  # fmt: skip
    exchange.on_end(9.5)
    assert exchange.outcome is Outcome.COMPLETED
    assert exchange.cancel_s is None
    assert (exchange.state.prompt_tokens, exchange.state.output_tokens) == (9, 3)
    assert exchange.original() == TraceOriginal(
        status="completed", ttft_s=1.0, worst_pause_s=1.5, e2e_s=8.5, config=4
    )


def test_a_client_that_left_waited_at_least_until_then() -> None:
    exchange = stream((2.0, text()), (2.25, text()))
    exchange.on_left(4.0)
    exchange.on_end(5.0)  # what comes later is no news
    assert (exchange.outcome, exchange.cancel_s) == (Outcome.ABORTED, 3.0)
    assert exchange.original().worst_pause_s == 1.75
    assert exchange.original().e2e_s == 3.0


def test_who_leaves_with_the_whole_answer_has_cancelled_nothing() -> None:
    exchange = stream((2.0, text()), (2.5, FINISH))
    exchange.on_left(2.6)
    assert (exchange.outcome, exchange.cancel_s) == (Outcome.COMPLETED, None)


@pytest.mark.parametrize(
    "last", [b"", event({}, finish="error"), b'data: {"error": {"message": "the engine failed"}}\n\n' + DONE]
)
def test_a_stream_that_breaks_has_failed(last: bytes) -> None:
    exchange = stream((2.0, text()), (2.5, last))
    exchange.on_end(3.0)
    assert exchange.outcome is Outcome.FAILED
    assert exchange.is_offered_traffic


def test_a_whole_answer_says_its_lengths_and_has_no_pause() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
    choice = {"message": {"role": "assistant", "content": "Hi you"}, "finish_reason": "stop"}
    exchange = whole(200, {"id": ID, "choices": [choice], "usage": usage})
    assert exchange.outcome is Outcome.COMPLETED
    assert (exchange.state.prompt_tokens, exchange.state.usage_tokens, exchange.state.cached_tokens) == (
        5,
        2,
        4,
    )
    assert (exchange.num_chars, exchange.unique_id) == (6, ID)
    assert exchange.original() == TraceOriginal(status="completed", e2e_s=2.0)
    assert whole(200, {"choices": [{"text": "abc", "finish_reason": "length"}]}).num_chars == 3


def test_an_answer_that_is_none_has_failed() -> None:
    assert whole(200, {"choices": 3}).outcome is Outcome.FAILED
    assert whole(200, ["?"]).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("status", "is_row"), [(429, True), (503, True), (500, True), (400, False), (404, False)]
)
def test_refusals_and_failures_are_traffic_and_a_client_s_own_faults_are_not(
    status: int, is_row: bool
) -> None:
    exchange = whole(status, {"error": {"message": "no"}})
    assert exchange.is_offered_traffic is is_row
    assert exchange.is_refused
    assert exchange.original() == TraceOriginal(status=status)
    assert exchange.cancel_s is None


def test_who_leaves_before_the_answer_begins_is_traffic_and_a_server_that_is_not_there_is_none() -> None:
    left, unreachable = Exchange(b"{}", {}, 1.0), Exchange(b"{}", {}, 1.0)
    left.on_left(3.0)
    unreachable.on_end(3.0)
    assert (left.is_offered_traffic, unreachable.is_offered_traffic) == (True, False)
    assert (left.outcome, left.cancel_s) == (Outcome.ABORTED, 2.0)


def test_ids_that_clients_chose_or_others_share_are_not_taken_over() -> None:
    told = event({"content": "x"}, id=ID)
    assert stream((2.0, told)).unique_id == ID
    assert stream((2.0, told), headers={"x-request-id": "ada-17"}).unique_id is None
    assert stream((2.0, event({"content": "x"}, id="chatcmpl-417"))).unique_id is None
    assert stream((2.0, text())).unique_id is None


def test_what_the_engine_says_of_its_queue_is_kept() -> None:
    exchange = stream((2.0, text()), (2.5, event({}, finish="stop", timings={"queue_s": 0.25})))
    assert exchange.original().queue_s == 0.25
