from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.recording.asked import Asked, read_request

_messages = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant"]),
            "content": st.none() | st.text(max_size=20),
        },
        optional={"name": st.text(max_size=5)},
    ),
    min_size=1,
    max_size=5,
)


def asked(**values: Any) -> Asked:
    request = read_request(json.dumps(values).encode())
    assert request is not None
    return request


@given(_messages, _messages)
def test_a_conversation_that_goes_on_begins_with_all_it_was(before: list[Any], more: list[Any]) -> None:
    assert asked(messages=before + more).text.startswith(asked(messages=before).text)
    assert len(asked(messages=before + more).text) > len(asked(messages=before).text)


def test_what_is_said_to_the_template_is_part_of_the_prompt() -> None:
    messages = [{"role": "user", "content": "hi"}]
    plain, with_tools = asked(messages=messages), asked(messages=messages, tools=[{"type": "function"}])
    called = asked(messages=[*messages, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}])
    parts = asked(messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}])
    assert len({a.text for a in (plain, with_tools, called, parts)}) == 4
    assert with_tools.to_count == {
        "model": None,
        "messages": messages,
        "tools": [{"type": "function"}],
        "return_ids": True,
    }


def test_what_a_row_holds_of_a_request() -> None:
    request = asked(prompt="a b", model="m", user="ada", max_tokens=7, priority=2, stream=True)
    assert (request.text, request.user, request.max_tokens) == ("a b", "ada", 7)
    assert (request.priority, request.streams, request.is_conversation) == (2, True, False)
    assert request.to_count == {"model": "m", "prompt": "a b", "return_ids": True}
    assert asked(messages=[{"role": "user"}], max_completion_tokens=3, max_tokens=9).max_tokens == 3


def test_token_ids_need_no_counting() -> None:
    request = asked(prompt=[[5, 6, 7]])
    assert (request.prompt, request.token_ids, request.to_count) == ((5, 6, 7), (5, 6, 7), None)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not JSON",
        b"[1]",
        b"{}",
        b'{"messages": []}',
        b'{"messages": "hi"}',
        b'{"prompt": ["one", "two"]}',
        b'{"prompt": []}',
        b'{"prompt": [1, true]}',
        b'{"prompt": [-1]}',
        b'{"prompt": [18446744073709551616]}',
    ],
)
def test_what_does_not_ask_for_one_answer_to_one_prompt_is_none(body: bytes) -> None:
    assert read_request(body) is None
