"""What a request to change the config says, in its headers, its query and its body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Request

from engine.config_store import Verdict
from engine.core.json_text import parse_json, shown
from engine.server.errors import ApiError
from engine.server.lease import lease_seconds
from engine.server.wire import read_bounded

_MAX_CONFIG_BYTES = 1 << 16
_MAX_GENERATION_DIGITS = 18
# What may stand beside `config` in a body: what GET answers may be put back.
_BESIDE = ("who", "why", "keep", "lease_s", "generation", "schema")


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedChange:
    """A change of the config, as it was asked for.

    Attributes:
        generation: the one it replaces; None does not care.
        values: the knobs.
        lease_s: None when it is not on loan.
    """

    generation: int | None
    values: dict[str, Any]
    who: str
    why: str
    keep: bool
    lease_s: float | None


async def read_change(request: Request) -> WantedChange:
    """Raises: ApiError: it is not clear what is wanted."""
    generation = if_match(request, required=True)
    body = await read_object(request)
    values = _values(body)
    beside = {} if values is body else body
    who, why = who_why(request, beside)
    keep, lease_s = _keep(request, beside), _wanted_lease_s(request, beside)
    if keep and lease_s is not None:
        raise _invalid("a change is either kept or on loan, not both")
    return WantedChange(generation=generation, values=values, who=who, why=why, keep=keep, lease_s=lease_s)


async def read_object(request: Request) -> dict[str, Any]:
    """A JSON object, empty for an empty body. Raises: ApiError."""
    body = await read_bounded(request, _MAX_CONFIG_BYTES)
    try:
        values = parse_json(body) if body.strip() else {}
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(values, dict):
        raise _invalid("the body must be a JSON object")
    return values


def if_match(request: Request, required: bool) -> int | None:
    """The generation of `If-Match`; `*` matches any. Raises: ApiError."""
    header = request.headers.get("if-match")
    if header is None and required:
        message = 'If-Match is wanted: the generation of GET /admin/config, as in If-Match: "3"'
        raise ApiError(428, message, code="if_match_required")
    if header is None or header.strip() == "*":
        return None
    tag = header.strip().removeprefix("W/").strip('"')
    if not tag.isdecimal() or len(tag) > _MAX_GENERATION_DIGITS:
        raise _invalid(f"If-Match must be a generation, not {shown(header)}")
    return int(tag)


def who_why(request: Request, body: dict[str, Any]) -> tuple[str, str]:
    """Who changes the config, and why. Raises: ApiError: they are no text."""
    said = [
        request.headers.get(f"x-evenflow-{name}") or request.query_params.get(name) or body.get(name) or ""
        for name in ("who", "why")
    ]
    for name, text in zip(("who", "why"), said, strict=True):
        if not isinstance(text, str):
            raise _invalid(f"{name} must be text, not {shown(text)}")
    return (said[0] or "unknown")[:200], said[1][:1000]


def read_judgement(body: dict[str, Any]) -> tuple[int, Verdict]:
    """A generation and what became of it. Raises: ApiError."""
    generation, verdict = body.get("generation"), body.get("verdict")
    if type(generation) is not int or verdict not in list(Verdict):
        raise _invalid(f"wanted: generation (a number) and verdict (one of {', '.join(Verdict)})")
    return generation, Verdict(verdict)


def _values(body: dict[str, Any]) -> dict[str, Any]:
    """Its `config`, or else all of it."""
    if "config" not in body:
        if beside := [name for name in _BESIDE if name in body]:
            raise _invalid(
                f'{beside[0]} is no knob; it stands beside them: {{"config": {{…}}, "{beside[0]}": …}}'
            )
        return body
    values = body["config"]
    if not isinstance(values, dict):
        raise _invalid(f"config must be an object of knobs, not {shown(values)}")
    if strange := sorted(body.keys() - {"config", *_BESIDE}):
        raise _invalid(f"{shown(strange[0])} has no meaning beside config; these have: {', '.join(_BESIDE)}")
    return values


def _keep(request: Request, body: dict[str, Any]) -> bool:
    """Said in another way than ours it is refused, so that nobody believes it was kept."""
    header, named = request.headers.get("x-evenflow-keep"), body.get("keep")
    if header not in (None, "0", "1") or not isinstance(named, bool | None):
        given = shown(named if header in (None, "0", "1") else header)
        raise _invalid(f"keep must be true or false (x-evenflow-keep: 1 or 0), not {given}")
    return header == "1" or named is True


def _wanted_lease_s(request: Request, body: dict[str, Any]) -> float | None:
    header = request.headers.get("x-evenflow-lease-s")
    if header is None:
        return lease_seconds(body["lease_s"]) if "lease_s" in body else None
    try:
        return lease_seconds(float(header))
    except ValueError:
        return lease_seconds(header)


def _invalid(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_value")
