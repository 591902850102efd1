"""The model's routes: chat and plain completions, models, tokenize."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from engine.core import request as core
from engine.core.executor import ModelInfo
from engine.core.json_text import shown
from engine.core.request import FinishReason
from engine.server.auth import KeyGuard
from engine.server.errors import ApiError, LengthFields, identify, unavailable
from engine.server.render import ChatShape, EventRenderer, Shape, whole_answer
from engine.server.service import Caller, Service
from engine.server.sse import KEEP_ALIVE_S, Departure, EventStream
from engine.server.stats import timings
from engine.server.stream import Stream
from engine.server.wire import (
    DEFAULT_MAX_TOKENS,
    Body,
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    Message,
    TokenizeRequest,
    read_body,
)

# Encoding this many characters takes about a millisecond; more would hold up every stream.
_ENCODE_INLINE_CHARS = 4096
# More than any token's average over a whole prompt, short of one that is nothing but blanks.
_MAX_CHARS_PER_TOKEN = 64
# About what a template writes around a message: ten thousand empty ones are a long text too.
_TEMPLATE_CHARS = 16


T = TypeVar("T")


class Prompt(NamedTuple):
    """Token ids, and where messages end among them."""

    tokens: list[int]
    boundaries: tuple[int, ...]


class ModelRoutes:
    """Everything under /v1, and /tokenize."""

    def __init__(
        self,
        service: Service,
        guard: KeyGuard,
        model_ids: Sequence[str] = (),
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        self._service = service
        self._model_ids = frozenset(model_ids)
        self._keep_alive_s = keep_alive_s
        self._created = int(time.time())
        router = self.router = APIRouter(dependencies=[Depends(guard)])
        router.post("/v1/chat/completions", openapi_extra=_body_schema(ChatRequest))(self.chat)
        router.post("/v1/completions", openapi_extra=_body_schema(CompletionRequest))(self.complete)
        router.post("/tokenize", openapi_extra=_body_schema(TokenizeRequest))(self.tokenize)
        router.get("/v1/models")(self.models)
        router.get("/v1/models/{model_id:path}")(self.model)

    async def chat(self, request: Request) -> Response:
        """Writes the assistant's next message."""
        body = await self._read(request, ChatRequest)
        self._check_model(body.model)
        prompt = await self._encode_messages(body.messages)
        return await self._answer(request, body, prompt, ChatShape())

    async def complete(self, request: Request) -> Response:
        """Continues a text."""
        body = await self._read(request, CompletionRequest)
        self._check_model(body.model)
        tokens = await self._encode(body.prompt) if isinstance(body.prompt, str) else self._known(body.prompt)
        return await self._answer(request, body, Prompt(tokens, (len(tokens),)), Shape())

    async def tokenize(self, request: Request) -> JSONResponse:
        """Counts the tokens of a prompt or a conversation."""
        body = await self._read(request, TokenizeRequest)
        self._check_model(body.model)
        if body.prompt is not None:
            ids = await self._encode(body.prompt)
        else:
            ids = (await self._encode_messages(body.messages or ())).tokens
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": self._loaded().context_tokens}
        return JSONResponse(answer | ({"tokens": ids} if body.return_ids else {}))

    async def models(self) -> dict[str, Any]:
        """The one model that is served."""
        return {"object": "list", "data": [self._describe()] if self._service.model else []}

    async def model(self, model_id: str) -> dict[str, Any]:
        self._check_model(model_id)
        return self._describe()

    # -- inside --------------------------------------------------------------------------------------

    def _describe(self) -> dict[str, Any]:
        """OpenAI's object, and what a simulation of this server must know of its model."""
        model = self._loaded()
        own = (
            "kv_capacity_tokens", "kv_block_tokens", "one_pass", "batches", "runs_ahead", "chunk_grid_tokens",
            "num_layers",
        )  # fmt: skip
        checkpoints = model.checkpoints and dataclasses.asdict(model.checkpoints)
        return {
            "id": self._service.served_name,
            "object": "model",
            "created": self._created,
            "owned_by": "evenflow",
            "max_model_len": model.context_tokens,
            "evenflow": {name: getattr(model, name) for name in own} | {"checkpoints": checkpoints},
        }

    async def _read(self, request: Request, kind: type[Body]) -> Body:
        return await read_body(request, kind, self._loaded().context_tokens)

    def _loaded(self) -> ModelInfo:
        if self._service.model is None:
            raise unavailable(self._service.engine.state)
        return self._service.model

    def _check_model(self, name: str | None) -> None:
        self._loaded()
        if name is not None and name != self._service.served_name and name not in self._model_ids:
            message = f"the model {shown(name)} does not exist; this server has {self._service.served_name}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def _known(self, prompt: list[int]) -> list[int]:
        """Raises: ApiError: an id is not the model's; the device would read whatever lies there."""
        limit = self._service.num_token_ids or 1 << 31
        if prompt and not 0 <= min(prompt) <= max(prompt) < limit:
            message = f"prompt: token ids are from 0 to {limit - 1}"
            raise ApiError(400, message, param="prompt", code="invalid_value")
        return prompt

    async def _encode(self, text: str) -> list[int]:
        self._check_size(len(text), "prompt")
        return await _run(self._service.tokenizer.encode, text, len(text))

    def _check_size(self, num_chars: int, field: str) -> None:
        """Refuses text that cannot fit before it costs seconds to encode. Raises: ApiError."""
        context = self._loaded().context_tokens
        if num_chars > context * _MAX_CHARS_PER_TOKEN:
            message = f"{num_chars} characters do not fit the model's context of {context} tokens"
            raise ApiError(400, message, param=field, code="context_length_exceeded")

    async def _encode_messages(self, messages: Sequence[Message]) -> Prompt:
        size = sum(message.num_chars + _TEMPLATE_CHARS for message in messages)
        self._check_size(size, "messages")
        try:
            return await _run(self._encode_parts, messages, size)
        except ValueError as error:
            raise ApiError(400, str(error), param="messages", code="invalid_value") from None

    def _encode_parts(self, messages: Sequence[Message]) -> Prompt:
        plain = [message.to_mapping() for message in messages]
        tokens = self._service.tokenizer.encode_chat(plain)
        return Prompt(tokens, self._service.tokenizer.boundaries(plain, tokens))

    async def _answer(
        self, request: Request, body: GenerationRequest, prompt: Prompt, shape: Shape
    ) -> Response:
        if not prompt.tokens:
            field = shape.prompt_field
            raise ApiError(400, f"{field}: has no tokens", param=field, code="invalid_value")
        request_id = f"{shape.id_prefix}-{uuid.uuid4().hex}"
        headers = identify(request, request_id)
        wanted = self._core_request(request_id, body, prompt)
        caller = Caller(body.user, request.headers.get("x-session-id"), body.stream)
        # Refused here, before any byte of a response; nothing is awaited until somebody owns the stream.
        fields = LengthFields(shape.prompt_field, body.limit_field)
        stream = self._service.open(wanted, body.stops, caller, fields)
        if body.stream:
            stream.shows_every_token = body.options.counts_tokens
            name = self._service.served_name
            renderer = EventRenderer(shape, request_id, name, len(prompt.tokens), body.options)
            return EventStream(stream, renderer, self._service.leave, headers, self._keep_alive_s)
        return await self._whole(request, stream, body, shape, headers)

    def _core_request(self, request_id: str, body: GenerationRequest, prompt: Prompt) -> core.Request:
        room = max(1, self._loaded().context_tokens - len(prompt.tokens))
        return core.Request(
            id=request_id,
            prompt=prompt.tokens,
            max_tokens=body.limit or min(room, DEFAULT_MAX_TOKENS),
            arrived_at_s=self._service.engine.clock(),
            stop_tokens=frozenset() if body.ignore_eos else self._service.tokenizer.eos_tokens,
            min_tokens=body.min_tokens,
            priority=body.priority,
            sampling=body.sampling(),
            boundaries=prompt.boundaries,
        )

    async def _whole(
        self, request: Request, stream: Stream, body: GenerationRequest, shape: Shape, headers: dict[str, str]
    ) -> Response:
        try:
            async with Departure(request.receive, lambda: self._service.leave(stream)):
                text, end = await stream.read_all()
        finally:
            self._service.leave(stream)
        if end.reason is FinishReason.ABORTED:
            return Response(status_code=499)  # nobody is there to read it
        if end.error:
            return JSONResponse(end.error.to_mapping(), end.error.status, headers | end.error.headers)
        answer = whole_answer(shape, stream.request, self._service.served_name, text, end)
        if body.options.include_timings:
            answer["timings"] = timings(end.timeline)
        return JSONResponse(answer, headers=headers)


async def _run(encode: Callable[[Any], T], what: Any, size: int) -> T:
    """Encodes on a worker thread unless it is short."""
    if size <= _ENCODE_INLINE_CHARS:
        return encode(what)
    return await asyncio.to_thread(encode, what)


def _body_schema(kind: type[Any]) -> dict[str, Any]:
    """Bodies are parsed by hand, to bound them and to name the field at fault; the docs still show them."""
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
