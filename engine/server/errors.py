"""Every answer that is not an answer, in OpenAI's error object."""

from __future__ import annotations

import json
import logging
import math
import re
import uuid
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from engine.core.admission import RefusalCode, Refused
from engine.notices import EngineState, Unavailable

_log = logging.getLogger(__name__)
_NEVER = {RefusalCode.CONTEXT_LENGTH, RefusalCode.KV_BUDGET}


class ApiError(Exception):
    """One refusal or failure: a status and OpenAI's error object.

    Args:
        param: the request field at fault.
        code: for programs; `message` is for people.
        details: further members of the error object.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}
        self.details = details or {}

    def to_mapping(self) -> dict[str, Any]:
        kind = _error_type(self.status)
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error | self.details}


def _error_type(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 403:
        return "permission_error"
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


class LengthFields(NamedTuple):
    """The fields of a body that say how long prompt and answer are; `answer` is None when it has none."""

    prompt: str
    answer: str | None


def refusal_error(refusal: Refused | Unavailable, fields: LengthFields) -> ApiError:
    """How the door's answer looks from outside."""
    if isinstance(refusal, Unavailable):
        return unavailable(refusal.state)
    if refusal.code in _NEVER:
        return _never_fits(refusal, fields)
    if refusal.code is RefusalCode.STOPPING:
        return unavailable(EngineState.STOPPING)
    wait_s = max(1, math.ceil(refusal.retry_after_s or 0))
    headers = {"Retry-After": str(wait_s)}
    return ApiError(429, refusal.message, code=refusal.code.value, headers=headers)


def _never_fits(refusal: Refused, fields: LengthFields) -> ApiError:
    room, param = refusal.room_tokens, fields.answer or "max_tokens"
    if room < 1:
        advice, param = "shorten the prompt", fields.prompt
    elif fields.answer:
        advice = f"lower {param} to {room} at most, or shorten the prompt"
    else:
        advice = f"send {param} of {room} at most, or shorten the prompt"
    return ApiError(400, f"{refusal.message}; {advice}", param=param, code=refusal.code.value)


def unavailable(state: EngineState) -> ApiError:
    """Why there is no answer from an engine in this state, other than `READY`."""
    if state is EngineState.STOPPED:
        state = EngineState.STOPPING  # to a client it is all one how far the stop has come
    messages = {
        EngineState.LOADING: "the model is still loading; try again soon",
        EngineState.RECOVERING: "the engine failed and is loading the model again; try again soon",
        EngineState.STOPPING: "the server is shutting down; try again soon",
    }
    message = messages.get(state, "the engine has stopped; the server must be started again")
    return _try_later(message, f"engine_{state.value}")


def _try_later(message: str, code: str) -> ApiError:
    return ApiError(503, message, code=code, headers={"Retry-After": "5"})


def failure(message: str, state: EngineState) -> ApiError:
    """What a request is answered that the engine failed on; `state` is what it is in since."""
    if state in (EngineState.STOPPING, EngineState.STOPPED):
        return _try_later(f"the server is shutting down, and the engine failed: {message}", "engine_stopping")
    return ApiError(500, f"the engine failed on this request: {message}", code="engine_failed")


def validation_error(error: ValidationError) -> ApiError:
    """The first problem of a body, named by its field."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"] if not _is_union_branch(part))
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {first['ctx']['error']}", code="invalid_json")
    if not field and first["type"].startswith("model"):
        return ApiError(400, "the body must be a JSON object", code="invalid_value")
    return field_error(field, first["msg"])


def field_error(field: str, message: str) -> ApiError:
    """A complaint of pydantic's, in our form."""
    said = message.removeprefix("Value error, ").partition(" after validation")[0]
    text = f"{field}: {said[:1].lower()}{said[1:]}" if field else said
    return ApiError(400, text, param=field or None, code="invalid_value")


def _is_union_branch(part: int | str) -> bool:
    """Pydantic puts the branch of a union it tried into the path; the caller's body has no such field."""
    return isinstance(part, str) and (part in ("str", "int", "float", "bool") or "[" in part)


def error_response(error: ApiError) -> JSONResponse:
    return JSONResponse(error.to_mapping(), error.status, error.headers)


_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


def identify(request: Request, own_id: str) -> dict[str, str]:
    """The headers that every answer carries: the caller's id, or else ours, and the config generation in
    force.
    """
    given = request.headers.get("x-request-id", "")
    return {
        "x-request-id": given if _REQUEST_ID.fullmatch(given) else own_id,
        "x-config-generation": str(request.app.state.service.generation),
    }


def add_error_handlers(app: FastAPI) -> None:
    """Puts every failure, framework's or ours, into the same shape."""
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientDisconnect, _on_departure)
    app.add_exception_handler(Exception, _on_bug)


async def _on_api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    messages = {404: f"no such route: {where}", 405: f"method not allowed: {where}"}
    message = messages.get(error.status_code, str(error.detail))
    headers = dict(error.headers or {})
    return error_response(ApiError(error.status_code, message, headers=headers))


async def _on_departure(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # it left before its body was whole; nobody is there to read it


async def _on_bug(request: Request, error: Exception) -> JSONResponse:
    # Answered outside of all that other answers pass through.
    headers = identify(request, f"err-{uuid.uuid4().hex}")
    return error_response(
        ApiError(500, "the server failed on this request", code="internal_error", headers=headers)
    )


def sse_error(error: ApiError) -> bytes:
    """The event that ends a stream whose 200 has left already."""
    return b"data: " + json.dumps(error.to_mapping()).encode() + b"\n\n"
