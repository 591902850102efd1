"""Bodies of requests, as they come over the wire."""

from __future__ import annotations

import asyncio
from codecs import BOM_UTF8
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from starlette.requests import Request

from engine.core.json_text import shown
from engine.core.request import SamplingParams
from engine.server.errors import ApiError, validation_error

MAX_BODY_BYTES = 16 << 20
# What a body may grow to at least, and for each token of the model's context: more than a prompt that fits
# has need of, even with every character escaped.
_LEAST_BODY_BYTES, _BODY_BYTES_PER_TOKEN = 1 << 20, 32
# Parsing this much takes about a millisecond; more would hold up every stream.
_PARSE_INLINE_BYTES = 1 << 16
_MAX_STOPS, _MAX_STOP_CHARS = 16, 1024
# What an answer may grow to when the caller names no limit: KV for it is promised at the door, so a
# generous default would turn others away.
DEFAULT_MAX_TOKENS = 1024
# Colder than this is greedy: the device would divide by what rounds to zero. vLLM draws the line here too.
_COLDEST = 1e-5

Body = TypeVar("Body", bound=BaseModel)

# Known to OpenAI's API or vLLM's, not to this server, and changing the answer: refused unless the value says
# nothing.
_NOT_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "stop_token_ids": ([],),
    "use_beam_search": (False,),
}


class _Fields(BaseModel):
    """Fields of which null means not given, as OpenAI's clients have it."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None}


class StreamOptions(_Fields):
    include_usage: bool = False
    include_timings: bool = False
    continuous_usage_stats: bool = False

    @property
    def counts_tokens(self) -> bool:
        """Whether the client wants to know of each token, not only of text."""
        return self.include_timings or self.continuous_usage_stats


class TextPart(BaseModel):
    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: str


class Message(BaseModel):
    model_config = ConfigDict(strict=True)

    role: str = Field(min_length=1)
    content: str | list[TextPart] | None = None
    tool_calls: list[Any] | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _content_is_text(cls, content: Any) -> Any:
        if isinstance(content, list):
            kinds = [part.get("type") if isinstance(part, dict) else None for part in content]
            if any(kind != "text" for kind in kinds):
                raise ValueError("only parts of type text are supported")
        elif content is not None and not isinstance(content, str):
            raise ValueError("should be a string or a list of text parts")
        return content

    @field_validator("tool_calls", mode="before")
    @classmethod
    def _no_tools(cls, calls: Any) -> Any:
        if calls:
            raise ValueError("tools are not supported by this server")
        return None

    @property
    def num_chars(self) -> int:
        """Of role and text."""
        content = self.content or ""
        parts = [content] if isinstance(content, str) else [part.text for part in content]
        return len(self.role) + sum(map(len, parts))

    def to_mapping(self) -> dict[str, str]:
        """Role and plain text."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return {"role": self.role, "content": text}


class GenerationRequest(_Fields):
    """What chat and plain completions share. Unknown fields are ignored."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1, lt=1 << 31)
    max_completion_tokens: int | None = Field(None, ge=1, lt=1 << 31)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=1 << 31)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=10)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 64)
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    min_tokens: int = Field(0, ge=0, lt=1 << 31)
    priority: int = Field(0, ge=-(1 << 31), lt=1 << 31)
    user: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_what_we_do(cls, values: Any) -> Any:
        for name, harmless in _NOT_SUPPORTED.items() if isinstance(values, dict) else ():
            value = values.get(name)
            # Also by type, for True is 1.
            if value is not None and (type(value), value) not in [(type(none), none) for none in harmless]:
                message = f"{name} is not supported by this server{_or_send(harmless)}"
                raise ApiError(400, message, param=name, code="unsupported_parameter")
        return values

    @model_validator(mode="after")
    def _least_below_most(self) -> Self:
        if self.limit and self.min_tokens > self.limit:
            message = f"min_tokens: {self.min_tokens} is more than {self.limit_field}, {self.limit}"
            raise ApiError(400, message, param="min_tokens", code="invalid_value")
        return self

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_is_strings(cls, stop: Any) -> Any:
        listed = [stop] if isinstance(stop, str) else stop
        if listed is None:
            return None
        if not isinstance(listed, list) or not all(isinstance(s, str) and s for s in listed):
            raise ValueError("should be a non-empty string or a list of them")
        if len(listed) > _MAX_STOPS or max(map(len, listed), default=0) > _MAX_STOP_CHARS:
            raise ValueError(f"should have at most {_MAX_STOPS} strings of {_MAX_STOP_CHARS} characters")
        return listed

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def limit_field(self) -> str | None:
        """Where `limit` was given, if it was."""
        if self.max_completion_tokens:
            return "max_completion_tokens"
        return "max_tokens" if self.max_tokens else None

    @property
    def stops(self) -> tuple[str, ...]:
        return tuple(self.stop or ())

    @property
    def options(self) -> StreamOptions:
        return self.stream_options or StreamOptions()

    @property
    def _draw_at(self) -> float:
        temperature = 1.0 if self.temperature is None else float(self.temperature)
        return 0.0 if temperature < _COLDEST else temperature

    def sampling(self) -> SamplingParams:
        """Temperature and top_p are 1 when not given, as in OpenAI's API."""
        return SamplingParams(
            temperature=self._draw_at,
            top_p=1.0 if self.top_p is None else float(self.top_p),
            top_k=max(0, self.top_k or 0),
            min_p=float(self.min_p or 0.0),
            repetition_penalty=float(self.repetition_penalty or 1.0),
            seed=None if self.seed is None else self.seed % (1 << 64),
        )


class ChatRequest(GenerationRequest):
    messages: list[Message] = Field(min_length=1)


class CompletionRequest(GenerationRequest):
    """`prompt`: a string, a list of one string, or token ids."""

    prompt: str | list[int]

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_prompt(cls, prompt: Any) -> Any:
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return prompt
        if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
            raise ValueError("should be a string, a list of one string, or a list of token ids")
        return prompt


class TokenizeRequest(_Fields):
    """Exactly one of `prompt` and `messages`; `return_ids` asks for the ids too."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    return_ids: bool = False

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


def _or_send(harmless: tuple[Any, ...]) -> str:
    """What may stand there all the same."""
    return f", other than {' or '.join(map(shown, harmless[:2]))}" if harmless else ""


async def read_bounded(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """The body. Raises: ApiError: 413, once it is known to be larger than `limit` bytes; 415."""
    if (encoding := request.headers.get("content-encoding", "identity")).lower() != "identity":
        message = f"a body in Content-Encoding {shown(encoding)} is not read; send it as it is"
        raise ApiError(415, message, code="unsupported_encoding")
    too_large = ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")
    if int(request.headers.get("content-length") or 0) > limit:
        raise too_large
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise too_large
    return bytes(body)


async def read_body(request: Request, kind: type[Body], context_tokens: int) -> Body:
    """The parsed body, whatever content type it claims. Raises: ApiError: 400 or 413."""
    most = max(_LEAST_BODY_BYTES, context_tokens * _BODY_BYTES_PER_TOKEN)
    body = await read_bounded(request, min(MAX_BODY_BYTES, most))
    if len(body) <= _PARSE_INLINE_BYTES:
        return _parse(body, kind)
    return await asyncio.to_thread(_parse, body, kind)


def _parse(body: bytes, kind: type[Body]) -> Body:
    body = body.removeprefix(BOM_UTF8)  # Windows writes it before text
    if not body.strip():
        raise ApiError(400, "the body is empty; a JSON object is wanted", code="invalid_json")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise validation_error(error) from None
