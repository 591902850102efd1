"""The server under test: where it is and how it is spoken to."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from engine.core.json_text import parse_json
from engine.core.keys import parse_keys
from loadtests.client.sse import error_message
from loadtests.errors import TargetError


@dataclass(frozen=True, slots=True)
class Target:
    """A server with OpenAI's chat route.

    Attributes:
        url: scheme, host and port; a trailing `/v1` is dropped.
        model: None asks the server for its first model.
        headers: sent with every request.
        foreign: another project's server: only OpenAI's own request fields plus `min_tokens` and
            `ignore_eos` are sent, and no timings are asked for.
    """

    url: str
    model: str | None = None
    api_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    foreign: bool = False

    def __post_init__(self) -> None:
        if not is_address(self.url):
            raise TargetError(f"{self.url!r} is not a server's address; write it like http://127.0.0.1:8080")
        object.__setattr__(self, "url", self.url.rstrip("/").removesuffix("/v1"))

    def request_headers(self) -> dict[str, str]:
        """The headers of every request."""
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {"Content-Type": "application/json", **key, **self.headers}


def is_address(url: str) -> bool:
    """Whether a server may be there: scheme, host and, if any, a port that exists."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # a port beyond 65535, half an IPv6 address
        return False
    is_whole = parts.scheme in ("http", "https") and parts.hostname and port != 0
    return bool(is_whole) and not any(letter.isspace() for letter in url)


def first_key(text: str) -> str | None:
    """The key that a client sends, of a key file's text; None when it holds none."""
    return next(iter(parse_keys(text)), None)


def as_target(target: Target | str) -> Target:
    """`target`, or the plain server at that address."""
    return Target(target) if isinstance(target, str) else target


def open_connection(url: str, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
    """A connection (not yet made) to `url`, and the path its requests start with."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    assert parts.hostname is not None
    return kind(parts.hostname, parts.port, timeout=timeout_s), parts.path


def call(
    target: Target, method: str, path: str, body: Any = None, timeout_s: float = 30.0
) -> tuple[int, Any]:
    """One JSON request: status and decoded answer (None when it is not JSON).

    Raises:
        TargetError: nobody answers.
    """
    connection, base = open_connection(target.url, timeout_s)
    payload = None if body is None else json.dumps(body)
    try:
        connection.request(method, base + path, payload, target.request_headers())
        response = connection.getresponse()
        return response.status, _decode(response.read())
    except (OSError, http.client.HTTPException) as error:
        raise TargetError(f"no answer from {target.url}{path}: {error or type(error).__name__}") from error
    finally:
        connection.close()


def _decode(raw: bytes) -> Any:
    try:
        return parse_json(raw)
    except ValueError:
        return None


def model_name(target: Target) -> str:
    """The model to ask for.

    Raises:
        TargetError: the server does not answer or lists no model.
    """
    return target.model or str(model_card(target)["id"])


def model_card(target: Target) -> Mapping[str, Any]:
    """What the server says of its first model: its `id`, and whatever else.

    Raises:
        TargetError: the server does not answer or lists no model.
    """
    status, answer = call(target, "GET", "/v1/models")
    try:
        card = answer["data"][0]
        return {**card, "id": card["id"]}
    except (TypeError, KeyError, IndexError):
        said = error_message(answer) if isinstance(answer, dict) else "no JSON"
        raise TargetError(f"{target.url}/v1/models names no model (HTTP {status}: {said})") from None
