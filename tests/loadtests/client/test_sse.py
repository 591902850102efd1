import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.client.sse import SseParser, StreamState
from loadtests.selftest.scripted_server import COMMENT, DONE, EMPTY_DELTA, ROLE_ONLY, event, text


def play(*events: bytes) -> tuple[StreamState, list[int | None]]:
    state, parser = StreamState(), SseParser()
    return state, [state.take(data)[0] for data in parser.feed(b"".join(events))]


def test_what_carries_nothing_is_no_content_event() -> None:
    usage_only = event(None, usage_tokens=1, prompt_tokens=9)
    state, tokens = play(ROLE_ONLY, EMPTY_DELTA, COMMENT, text(), event({}, finish="stop"), usage_only, DONE)
    assert tokens == [None, None, 1, None, None, None]
    assert (state.finish_reason, state.done, state.output_tokens, state.prompt_tokens) == ("stop", True, 1, 9)


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"reasoning_content": "x"},
        {"reasoning": "x"},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"role": "assistant", "content": "x"},
    ],
)
def test_text_reasoning_and_tool_calls_are_content(delta: dict[str, object]) -> None:
    assert play(event(delta))[1] == [1]


def test_completion_text_is_content() -> None:
    assert play(b'data: {"choices":[{"index":0,"text":"x"}]}\n\n')[1] == [1]


def test_a_running_usage_count_says_how_many_tokens_an_event_carried() -> None:
    events = [event({"content": "x"}, usage_tokens=n, prompt_tokens=5) for n in (1, 4, 6)]
    assert play(*events)[1] == [1, 3, 2]


def test_an_event_that_says_its_tokens_is_believed() -> None:
    assert play(text(num_tokens=3), event({}, num_tokens=2), text(num_tokens=0), event({}, num_tokens=0))[
        1
    ] == [3, 2, 0, None]


def test_a_grown_running_count_is_content_even_without_text() -> None:
    assert play(text(usage_tokens=1), event({}, usage_tokens=2))[1] == [1, 1]


def test_a_total_in_the_finishing_event_is_not_taken_for_output() -> None:
    state, tokens = play(text(), text(), event({}, finish="length", usage_tokens=5))
    assert tokens == [1, 1, None]
    assert state.output_tokens == 5


@pytest.mark.parametrize("said", ["5", 1.5, -1, 10**22, True, [5], {"a": 5}])
@pytest.mark.parametrize(
    "where",
    [
        '{"num_tokens": %s}',
        '{"usage": {"prompt_tokens": %s}}',
        '{"usage": {"completion_tokens": %s}}',
        '{"usage": {"prompt_tokens_details": {"cached_tokens": %s}}}',
        '{"timings": {"cached_tokens": %s}}',
    ],
)
def test_a_count_that_is_no_number_of_tokens_is_noted_and_not_taken(where: str, said: object) -> None:
    state, tokens = play(text(), b"data: " + (where % json.dumps(said)).encode() + b"\n\n")
    assert tokens == [1, None]
    assert (state.prompt_tokens, state.output_tokens, state.cached_tokens) == (None, 1, 0)
    assert "not a chat chunk" in (state.error or "")


def test_emit_stamps_timings_and_cached_tokens_are_kept() -> None:
    state, parser = StreamState(), SseParser()
    (data,) = parser.feed(text(emit_ns=12, step=3, timings={"cached_tokens": 64, "worst_pause_s": 0.1}))
    assert state.take(data) == (1, 12)
    assert (state.cached_tokens, state.timings) == (64, {"cached_tokens": 64, "worst_pause_s": 0.1})


def test_an_error_event_and_broken_json_are_noted() -> None:
    assert play(b'data: {"error": {"message": "out of memory"}}\n\n')[0].error == "out of memory"
    assert "not JSON" in (play(b"data: {oops\n\n")[0].error or "")


@pytest.mark.parametrize(
    "data",
    ["[]", "7", '{"choices": [3]}', '{"usage": {"completion_tokens": "x"}, "choices": [{"text": "y"}]}'],
)
def test_an_event_of_another_shape_is_noted_not_raised(data: str) -> None:
    assert "not a chat chunk" in (play(f"data: {data}\n\n".encode())[0].error or "")


@given(st.data(), st.sampled_from([b"\n", b"\r\n"]))
def test_events_are_the_same_however_the_packets_fell(data: st.DataObject, newline: bytes) -> None:
    stream = (ROLE_ONLY + text(" häß🦊lich") + COMMENT + text() + DONE).replace(b"\n", newline)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=8)))
    parser = SseParser()
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [e for piece in pieces for e in parser.feed(piece)] == list(SseParser().feed(stream))


def test_lines_of_one_event_are_joined_and_other_fields_ignored() -> None:
    parsed = list(SseParser().feed(b'event: x\nid: 1\ndata: {"a":\ndata: 1}\n\n'))
    assert [json.loads(data) for data in parsed] == [{"a": 1}]
