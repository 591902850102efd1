import json

import pytest

from engine.core.records import Outcome
from loadtests.client.sse_client import ChatStream
from loadtests.selftest.scripted_server import (
    COMMENT,
    DONE,
    GENERATION,
    ROLE_ONLY,
    Script,
    ScriptedServer,
    Write,
    event,
    text,
)

END = Write(0.0, event({}, finish="length") + event(None, usage_tokens=3, prompt_tokens=8) + DONE)


def read(script: Script) -> ChatStream:
    with ScriptedServer({1: script}) as server:
        return ask(server)


def ask(server: ScriptedServer) -> ChatStream:
    stream = ChatStream(
        server.url, {"content-type": "application/json"}, json.dumps({"max_tokens": 1}).encode()
    )
    stream.connect()
    stream.run()
    return stream


def stamps(stream: ChatStream) -> list[int]:
    return [at_ns for at_ns, _, _ in stream.events]


@pytest.mark.parametrize("chunked", [True, False])
def test_a_stream_is_read_to_its_end(chunked: bool) -> None:
    stream = read(
        Script((Write(0.0, ROLE_ONLY), *[Write(0.0, COMMENT + text(), 1)] * 3, END), chunked=chunked)
    )
    assert stream.outcome is Outcome.COMPLETED
    assert stream.fault is None
    assert (len(stream.events), stream.state.output_tokens, stream.state.prompt_tokens) == (3, 3, 8)
    assert stream.generation == GENERATION
    assert stream.sent_at_ns < stream.events[0][0] <= stream.ended_at_ns


def test_events_of_one_packet_share_the_stamp_of_its_read() -> None:
    stream = read(Script((Write(0.0, text() + text()), Write(0.5, text(), 1), END)))
    first, second, third = stamps(stream)
    assert first == second < third


def test_an_event_split_over_packets_arrives_with_its_last_piece() -> None:
    whole = text()
    script = Script(
        (Write(0.0, text(), 1), Write(0.03, whole[:5]), Write(0.03, whole[5:], 1), END), chunked=False
    )
    with ScriptedServer({1: script}) as server:
        stream = ask(server)
        sent = [at_ns for at_ns, num_events in server.sent[1] if num_events]
    assert stamps(stream)[1] >= sent[1]


def test_keep_alives_do_not_shorten_a_pause() -> None:
    stall = [Write(0.02, COMMENT)] * 3
    script = Script((Write(0.0, text(), 1), *stall, Write(0.02, text(), 1), END))
    with ScriptedServer({1: script}) as server:
        stream = ask(server)
        _, last_ns = [at_ns for at_ns, num_events in server.sent[1] if num_events]
    _, second = stamps(stream)
    assert second >= last_ns


@pytest.mark.parametrize("chunked", [True, False])
def test_a_cut_stream_fails_and_keeps_what_came(chunked: bool) -> None:
    stream = read(Script(tuple([Write(0.0, text(), 1)] * 2), is_cut=True, chunked=chunked))
    assert stream.outcome is Outcome.FAILED
    assert len(stream.events) == 2
    assert stream.fault


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_carries_when_to_come_back(status: int) -> None:
    stream = read(Script(status=status, headers={"Retry-After": "2"}))
    assert stream.outcome is Outcome.REFUSED
    assert stream.retry_after_s == 2.0
    assert stream.fault == f"HTTP {status}: not now"


def test_other_statuses_and_error_events_are_failures_with_the_servers_words() -> None:
    assert read(Script(status=400)).fault == "HTTP 400: not now"
    broken = read(Script((Write(0.0, text() + b'data: {"error": {"message": "out of memory"}}\n\n'),)))
    assert (broken.outcome, broken.fault) == (Outcome.FAILED, "out of memory")


def test_an_answer_that_is_no_stream_is_named() -> None:
    stream = read(Script((Write(0.0, b"{}"),), headers={"content-type": "application/json"}))
    assert stream.outcome is Outcome.FAILED


def test_slow_headers_delay_nothing_but_the_first_event() -> None:
    script = Script((Write(0.0, text(), 1), END), head_pause_s=0.05)
    with ScriptedServer({1: script}) as server:
        stream = ask(server)
        (received_ns,), (first_ns,) = server.received[1], [at for at, events in server.sent[1] if events]
    assert stream.outcome is Outcome.COMPLETED
    assert stamps(stream)[0] - received_ns >= first_ns - received_ns >= 0.05e9


@pytest.mark.parametrize("chunked", [True, False])
def test_a_stream_in_crumbs_is_read_as_it_was_meant(chunked: bool) -> None:
    crumbs = [Write(0.0, text(" häß🦊lich").replace(b"\n", b"\r\n"), 1)] * 3
    stream = read(Script((*crumbs, END), chunked=chunked, packet_bytes=3))
    assert (stream.outcome, len(stream.events), stream.fault) == (Outcome.COMPLETED, 3, None)


def test_the_end_mark_in_a_text_ends_nothing() -> None:
    stream = read(Script((Write(0.0, text("[DONE]"), 1), Write(0.0, text(), 1), END)))
    assert (stream.outcome, len(stream.events)) == (Outcome.COMPLETED, 2)


def test_a_server_that_says_done_and_holds_the_connection_is_left() -> None:
    done = [Write(0.0, event({}, finish="stop")), Write(0.0, DONE[:9]), Write(0.0, DONE[9:])]
    stream = read(Script((Write(0.0, text(), 1), *done, Write(60.0, COMMENT))))
    assert stream.outcome is Outcome.COMPLETED


def test_a_broken_framing_fails_with_what_came() -> None:
    head = {"Transfer-Encoding": "chunked"}
    stream = read(Script((Write(0.0, b"5\r\nhello\r\nnonsense\r\n"),), chunked=False, headers=head))
    assert stream.outcome is Outcome.FAILED
    assert "instead of its size" in stream.fault


def test_nobody_there_is_a_failure_not_an_exception() -> None:
    stream = ChatStream("http://127.0.0.1:9", {}, b"{}")
    stream.connect()
    stream.run()
    assert stream.outcome is Outcome.FAILED
    assert "cannot connect" in stream.fault


def test_a_request_not_yet_run_was_never_sent() -> None:
    assert ChatStream("http://127.0.0.1:9", {}, b"{}").outcome is Outcome.NEVER_SENT
