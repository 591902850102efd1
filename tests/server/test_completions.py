from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from engine.core.config import SchedulerConfig
from engine.server.wire import ChatRequest
from tests.engine.fakes import FakeBackend
from tests.server.live import Live, RawClient, chat, events, text_of

EIGHT = " w100 w101 w102 w103 w104 w105 w106 w107"


def test_a_whole_chat_answer(live: Live) -> None:
    response = live.http.post("/v1/chat/completions", json=chat())
    answer = response.json()
    assert response.status_code == 200
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": EIGHT},
            "finish_reason": "length",
            "logprobs": None,
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 8,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@pytest.mark.parametrize("prompt", ["a b c", ["a b c"], [1, 2, 3]])
def test_a_whole_completion_takes_text_or_tokens(live: Live, prompt: object) -> None:
    answer = live.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2}).json()
    assert answer["choices"][0]["text"] == " w100 w101"
    assert answer["usage"]["prompt_tokens"] == 3


def test_a_stream_brings_the_role_with_the_first_text(live: Live) -> None:
    response = live.http.post("/v1/chat/completions", json=chat(stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    parts = events(response.text)
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": " w100"}
    assert parts[1]["choices"][0]["delta"] == {"content": " w101"}
    assert text_of(parts) == EIGHT
    assert [p["choices"][0]["finish_reason"] for p in parts] == [None] * 8 + ["length"]
    assert all("usage" not in part for part in parts)


def test_a_plain_completion_streams_text(live: Live) -> None:
    body = {"prompt": "a", "max_tokens": 2, "stream": True}
    parts = events(live.http.post("/v1/completions", json=body).text)
    assert [p["choices"][0]["text"] for p in parts] == [" w100", " w101", ""]
    assert parts[0]["object"] == "text_completion"


def test_usage_comes_last_when_asked_for(live: Live) -> None:
    body = chat(stream=True, stream_options={"include_usage": True})
    *pieces, last = events(live.http.post("/v1/chat/completions", json=body).text)
    assert all(piece["usage"] is None for piece in pieces)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8


def test_usage_grows_with_every_event_when_asked_for(live: Live) -> None:
    body = chat(stream=True, stream_options={"continuous_usage_stats": True})
    parts = events(live.http.post("/v1/chat/completions", json=body).text)
    assert [part["usage"]["completion_tokens"] for part in parts] == [1, 2, 3, 4, 5, 6, 7, 8, 8]


def test_timings_say_where_the_time_went(live: Live) -> None:
    body = chat(stream=True, stream_options={"include_timings": True, "include_usage": True})
    parts = events(live.http.post("/v1/chat/completions", json=body).text)
    emitted = [part["emit_ns"] for part in parts]
    assert emitted == sorted(emitted)
    assert all(isinstance(part["step"], int) for part in parts)
    assert [part["num_tokens"] for part in parts] == [1] * 8 + [0, 0]
    assert set(parts[-1]["timings"]) == {
        "id",
        "queue_s",
        "prefill_s",
        "prefill_chunks",
        "cached_tokens",
        "ttft_s",
        "worst_pause_s",
        "worst_pause_cause",
    }
    assert parts[-1]["timings"]["worst_pause_cause"]["kind"] in ("decode", "host", "prefill")
    assert not any("timings" in part for part in parts[:-1])


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_before_it(live: Live, stream: bool) -> None:
    body = chat(stop=["w103 w1", "never"], max_tokens=500, stream=stream)
    response = live.http.post("/v1/chat/completions", json=body)
    if stream:
        parts = events(response.text)
        assert text_of(parts) == " w100 w101 w102 "
        assert parts[-1]["choices"][0]["finish_reason"] == "stop"
    else:
        choice = response.json()["choices"][0]
        assert choice["message"]["content"] == " w100 w101 w102 "
        assert choice["finish_reason"] == "stop"
    live.until(live.is_empty)
    assert live.outcomes() == ["completed"]


@pytest.mark.parametrize("option", ["include_timings", "continuous_usage_stats"])
def test_a_token_whose_text_is_held_back_is_told_to_who_counts_tokens(live: Live, option: str) -> None:
    body = chat(stop="w101 w102 nothing", stream=True, stream_options={option: True})
    parts = events(live.http.post("/v1/chat/completions", json=body).text)
    assert text_of(parts) == EIGHT
    texts = [part["choices"][0]["delta"].get("content") for part in parts]
    assert texts.count("") >= 1
    assert len([text for text in texts if text is not None]) == 8


def test_a_token_whose_text_is_held_back_makes_no_event_otherwise(live: Live) -> None:
    body = chat(stop="w101 w102 nothing", stream=True)
    parts = events(live.http.post("/v1/chat/completions", json=body).text)
    assert text_of(parts) == EIGHT
    assert "" not in [part["choices"][0]["delta"].get("content") for part in parts]


def test_a_stop_token_ends_the_answer_unless_ignored() -> None:
    backend = FakeBackend(tokens=[7, 8, 49_152])
    with Live(backend) as live:
        stopped = live.http.post("/v1/chat/completions", json=chat()).json()["choices"][0]
        assert (stopped["message"]["content"], stopped["finish_reason"]) == (" w7 w8", "stop")
        ignored = live.http.post("/v1/chat/completions", json=chat(ignore_eos=True)).json()
        assert ignored["usage"]["completion_tokens"] == 8


def test_the_answer_names_itself_and_its_config(live: Live) -> None:
    own = live.http.post("/v1/chat/completions", json=chat(stream=True))
    assert own.headers["x-request-id"] == events(own.text)[0]["id"]
    assert own.headers["x-config-generation"] == "1"
    given = live.http.post("/v1/chat/completions", json=chat(), headers={"x-request-id": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1"
    refused = live.http.post("/v1/chat/completions", json={}, headers={"x-request-id": "mine-2"})
    assert refused.headers["x-request-id"] == "mine-2"
    assert refused.headers["x-config-generation"] == "1"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models", 200),
        ("POST", "/tokenize", 200),
        ("GET", "/admin/config", 200),
        ("GET", "/admin/stats?window_s=0", 400),
        ("GET", "/health", 200),
        ("GET", "/nowhere", 404),
        ("GET", "/metrics", 500),
    ],
)
def test_every_answer_says_which_request_and_config_it_is_of(
    live: Live, monkeypatch: pytest.MonkeyPatch, method: str, path: str, status: int
) -> None:
    monkeypatch.setattr(live.service.metrics, "text", lambda: 1 / 0)
    body = {"prompt": "w5"} if method == "POST" else None
    # On connections of their own: uvicorn closes one after a 500.
    given = httpx.request(method, live.url + path, json=body, headers={"x-request-id": "mine"})
    own = httpx.request(method, live.url + path, json=body)
    assert given.status_code == status
    assert given.headers.get_list("x-request-id") == ["mine"]
    assert len(own.headers["x-request-id"]) > 32
    assert own.headers["x-config-generation"] == "1"


def test_models_and_tokenize(live: Live) -> None:
    listed = live.http.get("/v1/models").json()
    assert [entry["id"] for entry in listed["data"]] == ["fake"]
    assert live.http.get("/v1/models/fake").json()["id"] == "fake"
    counted = live.http.post("/tokenize", json={"prompt": "w5 w6"}).json()
    assert counted == {"count": 2, "max_model_len": 1000}
    ids = live.http.post("/tokenize", json={"prompt": "w5 w6", "return_ids": True}).json()
    assert ids["tokens"] == [5, 6]
    messages = {"messages": chat()["messages"]}
    assert live.http.post("/tokenize", json=messages).json()["count"] == 4


BAD: list[tuple[dict[str, Any], str]] = [
    (chat(max_tokens=-1), "max_tokens"),
    (chat(max_tokens="8"), "max_tokens"),
    (chat(temperature=3), "temperature"),
    (chat(top_p=0), "top_p"),
    (chat(stream="yes"), "stream"),
    (chat(stop=[""]), "stop"),
    (chat(stop=["a" * 1025]), "stop"),
    (chat(n=2), "n"),
    (chat(n=True), "n"),
    (chat(logprobs=0), "logprobs"),
    (chat(tool_choice="required"), "tool_choice"),
    (chat(guided_json={}), "guided_json"),
    (chat(max_tokens=1 << 31), "max_tokens"),
    (chat(max_completion_tokens=10**4000), "max_completion_tokens"),
    (chat(min_tokens=9), "min_tokens"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages.0.tool_calls"),
    (chat(tools=[{"type": "function"}]), "tools"),
    (chat(logprobs=True), "logprobs"),
    (chat(frequency_penalty=1), "frequency_penalty"),
    (chat(response_format={"type": "json_object"}), "response_format"),
    (chat(min_tokens=-1), "min_tokens"),
    (chat(top_k=1 << 31), "top_k"),
    (chat(repetition_penalty=1e-300), "repetition_penalty"),
    ({"messages": []}, "messages"),
    ({"max_tokens": 1}, "messages"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
]


@pytest.mark.parametrize(("body", "param"), BAD, ids=[param for _, param in BAD])
def test_a_bad_field_is_named(live: Live, body: dict[str, Any], param: str) -> None:
    response = live.http.post("/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param in error["message"]
    assert live.service.ended.last_seq == 0


@pytest.mark.parametrize(("given", "drawn_at"), [(1e-300, 0), (0, 0), (0.01, 0.01), (None, 1)])
def test_a_temperature_that_the_device_would_round_to_zero_is_zero(
    given: float | None, drawn_at: float
) -> None:
    body = ChatRequest.model_validate_json(json.dumps(chat(temperature=given)))
    assert body.sampling().temperature == drawn_at


@pytest.mark.parametrize(
    "harmless",
    [
        {"n": 1},
        {"tools": []},
        {"logprobs": False},
        {"store": True},
        {"foo": 1},
        {"stream": None, "min_tokens": None},
        {"stream_options": {"include_usage": None}},
        {"tool_choice": "auto", "frequency_penalty": 0.0, "presence_penalty": 0},
        {"messages": [{"role": "user", "content": "a", "tool_calls": []}]},
    ],
)
def test_fields_that_change_nothing_are_ignored(live: Live, harmless: dict[str, Any]) -> None:
    assert live.http.post("/v1/chat/completions", json=chat(**harmless)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/chat/completions", b"{", 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b" ", 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b"[]", 400, "invalid_value"),
        ("POST", "/v1/completions", b'{"prompt": ["a", "b"]}', 400, "invalid_value"),
        ("POST", "/v1/completions", b'{"prompt": []}', 400, "invalid_value"),
        ("POST", "/v1/completions", b'{"prompt": "a", "model": "gpt-9"}', 404, "model_not_found"),
        ("POST", "/v1/completions", b'{"prompt": "a", "max_tokens": 5000}', 400, "context_length_exceeded"),
        ("POST", "/tokenize", b"{}", 400, "invalid_value"),
        ("GET", "/v1/nowhere", None, 404, None),
        ("GET", "/v1/chat/completions", None, 405, None),
        ("GET", "/v1/models/other", None, 404, "model_not_found"),
    ],
)
def test_every_failure_has_openais_shape(
    live: Live, method: str, path: str, body: bytes | None, status: int, code: str | None
) -> None:
    response = live.http.request(method, path, content=body)
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert error["message"]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/v1/chat/completions", "", "the body is empty; a JSON object is wanted"),
        ("/v1/chat/completions", "5", "the body must be a JSON object"),
        ("/tokenize", "[]", "the body must be a JSON object"),
        ("/tokenize", '{"messages": []}', "messages: list should have at least 1 item"),
        ("/v1/completions", '{"prompt": "a", "n": 2}', "n is not supported by this server, other than 1"),
        (
            "/v1/completions",
            '{"prompt": "a", "tools": [1]}',
            "tools is not supported by this server, other than []",
        ),
        (
            "/v1/completions",
            '{"prompt": "a", "temperature": NaN}',
            "temperature: input should be a finite number",
        ),
        (
            "/v1/completions",
            '{"prompt": "a", "max_tokens": 2, "min_tokens": 3}',
            "3 is more than max_tokens, 2",
        ),
        ("/v1/completions", '{"prompt": "a", "model": "' + "x" * 5000 + '"}', "…"),
    ],
)
def test_a_refusal_says_what_to_mend_in_few_words(live: Live, path: str, body: str, said: str) -> None:
    message = live.http.post(path, content=body).json()["error"]["message"]
    assert said in message
    assert len(message) < 200


def test_an_encoded_body_is_refused_by_its_encoding(live: Live) -> None:
    answer = live.http.post("/tokenize", content=b"x", headers={"Content-Encoding": "gzip"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_encoding")
    plain = live.http.post("/tokenize", json={"prompt": "a"}, headers={"Content-Encoding": "identity"})
    assert plain.json()["count"] == 1


def test_a_byte_order_mark_before_a_body_is_no_fault(live: Live) -> None:
    assert live.http.post("/tokenize", content=b'\xef\xbb\xbf{"prompt": "a"}').json()["count"] == 1


def test_both_apis_take_either_name_of_the_limit(live: Live) -> None:
    body = {"prompt": "a", "max_completion_tokens": 2, "max_tokens": 9}
    assert live.http.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 2


def test_token_ids_must_be_the_models(live: Live) -> None:
    response = live.http.post("/v1/completions", json={"prompt": [1, -5]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"


def test_a_body_too_large_is_refused_with_and_without_a_length(live: Live) -> None:
    large = b" " * (17 << 20)
    assert live.http.post("/v1/completions", content=large).status_code == 413
    parts = (large[at : at + 65536] for at in range(0, len(large), 65536))
    assert live.http.post("/v1/completions", content=parts).status_code == 413


def test_the_default_limit_is_what_is_left_of_the_context(live: Live) -> None:
    body = {"prompt": [1] * 990}
    assert live.http.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 10


@pytest.mark.parametrize(
    ("length", "fields", "param", "message"),
    [
        (900, {"max_tokens": 101}, "max_tokens", "lower max_tokens to 100 at most, or shorten the prompt"),
        (1000, {}, "prompt", "1000 prompt tokens and 1 for the answer do not fit the model's context"),
        (1000, {"max_tokens": 5}, "prompt", "of 1000 tokens; shorten the prompt"),
        (500, {"max_tokens": 101}, "max_tokens", "KV budget of 600 tokens (kv_budget_tokens); lower max_tok"),
        (500, {}, "max_tokens", "500 for the answer do not fit the KV budget of 600 tokens"),
        (500, {}, "max_tokens", "; send max_tokens of 100 at most, or shorten the prompt"),
        (600, {}, "prompt", "; shorten the prompt"),
    ],
)
def test_what_never_fits_is_told_what_to_change(
    backend: FakeBackend, length: int, fields: dict[str, Any], param: str, message: str
) -> None:
    with Live(backend, SchedulerConfig(kv_budget_tokens=600)) as live:
        answer = live.http.post("/v1/completions", json={"prompt": [1] * length} | fields)
        error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]


def test_the_limit_is_called_as_the_caller_called_it(live: Live) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 5000}
    error = live.http.post("/v1/chat/completions", json=body).json()["error"]
    assert error["param"] == "max_completion_tokens"
    assert "lower max_completion_tokens to 997 at most" in error["message"]


def test_a_full_queue_answers_429_with_a_whole_number_of_seconds(backend: FakeBackend) -> None:
    config = SchedulerConfig(max_running_requests=1, max_waiting_requests=0)
    with Live(backend, config) as live:
        backend.gate.hold()
        first = RawClient(live, chat(stream=True))
        live.until(lambda: live.service.streams)
        response = live.http.post("/v1/chat/completions", json=chat(stream=True))
        first.leave()
        backend.gate.open()
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["type"] == "rate_limit_error"
    assert response.json()["error"]["code"] == "queue_full"


def test_text_far_beyond_the_context_is_refused_unread(live: Live) -> None:
    response = live.http.post("/v1/completions", json={"prompt": "x" * 100_000})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
