"""Asking a server how it puts a prompt into tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx

from engine.core.json_text import parse_json
from loadtests.client.target import Target, call
from loadtests.errors import TargetError
from loadtests.recording.asked import are_token_ids

_HELLO = [{"role": "user", "content": "Hello"}]
_TIMEOUT = dict.fromkeys(("connect", "read", "write", "pool"), 10.0)


def counts_tokens(target: Target) -> bool:
    """Whether the server's `POST /tokenize` takes conversations and gives token ids, as Evenflow's and
    vLLM's do.

    Raises:
        TargetError: nobody answers, or a key is wanted.
    """
    status, answer = call(target, "POST", "/tokenize", {"messages": _HELLO, "return_ids": True})
    if status == 401:
        raise TargetError(f"{target.url} wants a key; give its file with --api-key-file")
    return status == 200 and _ids(answer) is not None


class TokenCounter:
    """Asks `POST /tokenize`, one prompt at a time, as the client that sent it.

    Args:
        url: of the server.
    """

    def __init__(self, url: str, transport: httpx.AsyncBaseTransport) -> None:
        self._url = url + "/tokenize"
        self._transport = transport

    async def token_ids(self, prompt: Mapping[str, Any], headers: Mapping[str, str]) -> list[int] | None:
        """The prompt's tokens; None when the server does not say, whatever the reason."""
        key = {"authorization": headers["authorization"]} if "authorization" in headers else {}
        request = httpx.Request(
            "POST",
            self._url,
            headers={"content-type": "application/json", **key},
            content=json.dumps(prompt).encode(),
            extensions={"timeout": _TIMEOUT},
        )
        try:
            response = await self._transport.handle_async_request(request)
            response.request = request
            return _ids(parse_json(await response.aread())) if response.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return None


def _ids(answer: Any) -> list[int] | None:
    ids = answer.get("tokens") if isinstance(answer, dict) else None
    if not isinstance(ids, list) or not ids or answer.get("count") != len(ids):
        return None
    return ids if are_token_ids(ids) else None
