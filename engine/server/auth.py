"""Who may call: API keys for the model, an admin key or the loopback for the rest."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from starlette.requests import Request

from engine.core.errors import EvenflowError, reason
from engine.core.keys import parse_keys
from engine.server.errors import ApiError


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys of a key file.

    Raises:
        EvenflowError: unreadable, or without a key.
    """
    try:
        keys = parse_keys(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise EvenflowError(f"cannot read keys from {path}: {reason(error)}") from None
    if not keys:
        raise EvenflowError(f"{path} holds no key; write one a line")
    return keys


def is_loopback(host: str) -> bool:
    """Whether an address or host name can only mean this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class KeyGuard:
    """Lets callers with one of the keys pass; everybody when there are none."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = tuple(key.encode() for key in keys)

    async def __call__(self, request: Request) -> None:
        """Raises: ApiError: 401."""
        if self._keys and not self._knows(request.headers.get("authorization", "")):
            raise ApiError(
                401,
                "a valid key is wanted: Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _knows(self, header: str) -> bool:
        scheme, _, key = header.partition(" ")
        given = key.strip().encode()
        # Every key is compared: how long it takes says nothing about which one came close.
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        return scheme.lower() == "bearer" and any(matches)


# Written by proxies. One on this machine makes everybody look local.
_FORWARDING = ("forwarded", "via", "x-real-ip", "x-forwarded-")


class AdminGuard:
    """Wants the admin key when there is one, and the loopback without a proxy otherwise. A proxy that adds no
    header cannot be noticed.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = KeyGuard(keys) if keys else None

    async def __call__(self, request: Request) -> None:
        """Raises: ApiError: 401 or 403."""
        if self._keys:
            await self._keys(request)
        elif name := next((name for name in request.headers if name.startswith(_FORWARDING)), None):
            raise _not_local(f"this request came through a proxy (it has the header {name})")
        elif not _from_this_machine(request):
            raise _not_local("this request came from elsewhere")


def _not_local(why: str) -> ApiError:
    message = (
        f"without an admin key admin routes answer programs of this machine only, and {why}; "
        "start the server with --admin-key-file and send Authorization: Bearer KEY"
    )
    return ApiError(403, message, code="admin_loopback_only")


def _from_this_machine(request: Request) -> bool:
    """The peer is local, and no web page of another site makes the local browser ask (the `Origin` of a
    foreign page, or a foreign name that resolves to this machine).
    """
    peer = request.client.host if request.client else ""
    origin = request.headers.get("origin")
    names = [peer, _host("//" + request.headers.get("host", "localhost"))]
    if origin is not None:
        names.append(_host(origin))
    return all(is_loopback(name) for name in names)


def _host(url: str) -> str:
    """Its host; empty when it has none, or is no URL at all."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
