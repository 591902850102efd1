from __future__ import annotations

import json

import httpx
import pytest

from engine.chat import ChatError, Conversation


def event(**choice: object) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, **choice}]}) + "\n\n"


def conversation(*answers: tuple[int, str]) -> Conversation:
    left = list(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        status, text = left.pop(0)
        return httpx.Response(status, text=text)

    client = httpx.Client(base_url="http://engine", transport=httpx.MockTransport(answer))
    return Conversation(client, {}, "be brief")


def test_an_answer_comes_in_pieces_and_is_remembered() -> None:
    talk = conversation(
        (200, event(delta={"content": "Hel"}) + event(delta={"content": "lo"}) + "data: [DONE]\n\n")
    )
    assert list(talk.say("hi")) == ["Hel", "lo"]
    assert [message["role"] for message in talk.messages] == ["system", "user", "assistant"]
    assert talk.messages[-1]["content"] == "Hello"


@pytest.mark.parametrize(
    ("status", "text", "message"),
    [
        (429, '{"error": {"message": "try again later"}}', "try again later"),
        (502, "<html>", "HTTP 502"),
        (200, 'data: {"error": {"message": "it broke"}}\n\n', "it broke"),
        (200, "data: hello\n\n", "another language"),
        (200, 'data: {"error": "it broke"}\n\n', "another language"),
        (200, 'data: {"choices": null}\n\n', "another language"),
    ],
)
def test_a_turn_that_failed_is_forgotten(status: int, text: str, message: str) -> None:
    talk = conversation((status, text))
    with pytest.raises(ChatError, match=message):
        list(talk.say("hi"))
    assert len(talk.messages) == 1
