"""`engine chat`: a conversation with a running server, in the terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

import httpx

from engine.core.errors import EvenflowError
from engine.core.json_text import parse_json


class ChatError(EvenflowError):
    """The server cannot be reached, or would not answer."""


class Conversation:
    """Messages so far, and the server that continues them."""

    def __init__(self, client: httpx.Client, options: dict[str, Any], system: str | None = None) -> None:
        self._client = client
        self._options = options
        self.messages = [{"role": "system", "content": system}] if system else []

    def say(self, text: str) -> Iterator[str]:
        """The answer, piece by piece; what was read of it is remembered even if the rest is not.

        Raises:
            ChatError: no answer; the message just said is forgotten.
        """
        self.messages.append({"role": "user", "content": text})
        answer: list[str] = []
        try:
            for piece in self._pieces():
                answer.append(piece)
                yield piece
        finally:
            if answer:
                self.messages.append({"role": "assistant", "content": "".join(answer)})
            else:
                self.messages.pop()

    def _pieces(self) -> Iterator[str]:
        body = {"messages": self.messages, "stream": True, **self._options}
        try:
            with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    response.read()
                    raise ChatError(_error_text(response))
                yield from _contents(response.iter_lines())
        except httpx.HTTPError as error:
            raise ChatError(f"{self._client.base_url}: {error or type(error).__name__}") from None


def _contents(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        data = line.removeprefix("data: ")
        try:
            text = _content(parse_json(data))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ChatError(f"the server speaks another language: {data[:80]!r}") from None
        if text:
            yield text


def _content(event: Any) -> str:
    """Raises: ChatError, or whatever comes of an event of another shape."""
    if error := event.get("error"):
        raise ChatError(str(error["message"]))
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


def _error_text(response: httpx.Response) -> str:
    try:
        return str(parse_json(response.content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}"


def run(arguments: argparse.Namespace) -> int:
    """Reads lines from the terminal until its end; Ctrl-C stops an answer, twice on the prompt leaves.

    Raises:
        EvenflowError: the key file cannot be used.
    """
    headers = {}
    if arguments.api_key_file:
        from engine.server.auth import read_keys

        headers["Authorization"] = f"Bearer {read_keys(arguments.api_key_file)[0]}"
    options = {"temperature": arguments.temperature}
    if arguments.max_tokens:
        options["max_tokens"] = arguments.max_tokens
    # Reading may take as long as the queue does; connecting may not.
    timeout = httpx.Timeout(None, connect=5.0)
    with _client(arguments.url, headers, timeout) as client:
        conversation = Conversation(client, options, arguments.system)
        while (line := _read_line()) is not None:
            if line.strip() and not _show(conversation, line):
                return 1
    return 0


def _client(url: str, headers: dict[str, str], timeout: httpx.Timeout) -> httpx.Client:
    try:
        return httpx.Client(base_url=url, headers=headers, timeout=timeout)
    except httpx.InvalidURL as error:
        raise ChatError(f"{url!r} is not a server's address: {error}") from None


def _read_line() -> str | None:
    """What the user typed; None at the end of input or on Ctrl-C."""
    if sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    try:
        line = sys.stdin.readline()
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return None
    # Bytes that are no text cannot be sent as JSON.
    return line.encode("utf-8", "replace").decode() or None


def _show(conversation: Conversation, line: str) -> bool:
    try:
        for piece in conversation.say(line.rstrip("\n")):
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        print(" …", end="")
    except ChatError as error:
        print(f"engine: {error}", file=sys.stderr)
        return sys.stdin.isatty()
    print(flush=True)
    return True
