"""What a request to an OpenAI-compatible server asks for: read from its body, and nothing else is. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.core.json_text import parse_json

_MOST_IDS = 1 << 31  # of a vocabulary: no model's is near that
# Fields that change how a conversation is put into tokens, as vLLM's `/tokenize` takes them too.
_TEMPLATE_FIELDS = ("tools", "chat_template", "chat_template_kwargs", "add_generation_prompt")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for one answer.

    Attributes:
        text: the prompt as text, message after message, so that a conversation's later prompts begin with
            it; empty when it came as token ids.
        token_ids: the prompt, when it came so.
        to_count: body of a `POST /tokenize` for the same prompt; None when it came as token ids.
    """

    text: str
    token_ids: tuple[int, ...] | None
    to_count: Mapping[str, Any] | None
    user: str | None
    max_tokens: int | None
    priority: int | None
    streams: bool

    @property
    def prompt(self) -> str | tuple[int, ...]:
        return self.text if self.token_ids is None else self.token_ids

    @property
    def is_conversation(self) -> bool:
        return self.to_count is not None and "messages" in self.to_count


def read_request(body: bytes) -> Asked | None:
    """The request in a body; None when it is not one for one answer to one prompt."""
    try:
        values = parse_json(body)
    except ValueError:
        return None
    if not isinstance(values, dict):
        return None
    prompt = _prompt(values)
    if prompt is None:
        return None
    text, token_ids, to_count = prompt
    return Asked(
        text=text,
        token_ids=token_ids,
        to_count=to_count and {"model": values.get("model"), **to_count, "return_ids": True},
        user=values["user"] if isinstance(values.get("user"), str) else None,
        max_tokens=_limit(values.get("max_completion_tokens")) or _limit(values.get("max_tokens")),
        priority=_whole(values.get("priority")),
        streams=values.get("stream") is True,
    )


_Prompt = tuple[str, tuple[int, ...] | None, dict[str, Any] | None]


def _prompt(values: Mapping[str, Any]) -> _Prompt | None:
    messages, prompt = values.get("messages"), values.get("prompt")
    if isinstance(messages, list) and messages:
        given = {name: values[name] for name in _TEMPLATE_FIELDS if values.get(name) is not None}
        return _conversation(messages, values.get("tools")), None, {"messages": messages, **given}
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt, None, {"prompt": prompt}
    if isinstance(prompt, list) and prompt and are_token_ids(prompt):
        return "", tuple(prompt), None
    return None


def are_token_ids(values: Sequence[Any]) -> bool:
    """Whether some vocabulary can have them."""
    return all(type(value) is int and 0 <= value < _MOST_IDS for value in values)


def _conversation(messages: Sequence[Any], tools: Any) -> str:
    head = json.dumps(tools) + "\n" if tools else ""
    return head + "".join(_message(message) for message in messages)


def _message(message: Any) -> str:
    """Its role, its text, and whatever else it says."""
    if not isinstance(message, dict):
        return json.dumps(message) + "\n"
    rest = {name: value for name, value in message.items() if name not in ("role", "content") and value}
    content = message.get("content")
    said = content if isinstance(content, str) else json.dumps(content) if content else ""
    return f"{message.get('role')}\n{said}\n" + (json.dumps(rest) + "\n" if rest else "")


def _limit(value: Any) -> int | None:
    """Some clients say -1 for none."""
    number = _whole(value)
    return number if number and number > 0 else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
