"""Traffic traces, format version 1: JSON Lines, a header first, then a row per request.

No prompt text by default: lengths and salted hashes of prefix blocks only. Everything here works on lines,
one at a time; opening files is the caller's.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.core.errors import TraceError
from engine.core.json_text import parse_json, shown

VERSION = 1
MAX_TOKENS = 10**8  # ten times what any model reads, and still few enough to name every block of them
MAX_SECONDS = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHeader:
    """What holds for every row.

    Attributes:
        t0: wall-clock instant of the rows' `t` = 0, ISO 8601 in UTC.
        tokenizer: sha256 of the tokenizer.json that counted the tokens.
        block: tokens per prefix block; 0 when rows carry no `prefix`, or one of text.
        text_block: characters per prefix block, where nobody counted the tokens of a part of a prompt.
        salt_id: names the salt of the block hashes: hashes compare only under the same one.
        redaction: "lengths+hashes", or "text" when prompts were recorded.
    """

    t0: str = ""
    tokenizer: str = ""
    block: int = 0
    text_block: int | None = None
    salt_id: str = ""
    source: str = ""
    redaction: str = "lengths+hashes"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOriginal:
    """What the recorded server did with the request; seconds."""

    status: int | str | None = None
    queue_s: float | None = None
    ttft_s: float | None = None
    worst_pause_s: float | None = None
    e2e_s: float | None = None
    config: int | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow:
    """One request.

    Attributes:
        t: seconds from the header's `t0`.
        prompt_tokens, output_tokens: `in` and `out` in the file.
        after: id of the session's previous turn.
        think_s: from that turn's end to this request.
        cached: prompt tokens that a prefix cache held.
        prefix: hashes of the prompt's blocks from the front; the last block may be partial.
        cancel_s: the client left this long after sending.
        estimated: those of `in` and `out` that nobody counted.
    """

    id: str
    t: float
    prompt_tokens: int
    output_tokens: int
    user: str | None = None
    session: str | None = None
    turn: int | None = None
    after: str | None = None
    think_s: float | None = None
    cached: int | None = None
    max_tokens: int | None = None
    prefix: tuple[str, ...] = ()
    stream: bool | None = None
    priority: int | None = None
    cancel_s: float | None = None
    orig: TraceOriginal | None = None
    estimated: tuple[str, ...] = ()


_ORIGINAL = frozenset(field.name for field in dataclasses.fields(TraceOriginal))
_ORIGINAL_NAMES = frozenset({"status", "config"})
_SECONDS = f"seconds from 0 to {MAX_SECONDS:g}"


def format_header(header: TraceHeader) -> str:
    """The header's line, without a line break. Empty fields are left out."""
    return _dump({"v": VERSION, "kind": "header", **_stated(header)})


def format_row(row: TraceRow) -> str:
    """The row's line, without a line break. Fields that are not stated are left out."""
    values = _stated(row)
    lengths = {"in": values.pop("prompt_tokens"), "out": values.pop("output_tokens")}
    return _dump({"id": row.id, "t": row.t, **lengths, **values})


def _stated(value: Any) -> dict[str, Any]:
    plain = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(plain.get("orig"), TraceOriginal):
        plain["orig"] = _stated(plain["orig"])
    return {name: item for name, item in plain.items() if item is not None and item not in ("", (), {})}


def _dump(values: Mapping[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def is_header(line: str) -> bool:
    """Whether a first line announces this format, whatever its version."""
    try:
        values = parse_json(line)
    except ValueError:
        return False
    return isinstance(values, dict) and values.get("kind") == "header"


def parse_header(line: str, source: str = "trace", number: int = 1) -> TraceHeader:
    """The header in a trace's line, the first one as a rule. Fields of later minor additions are ignored.

    Raises:
        TraceError: not a header, or of another version; names `source`, line and field.
    """
    values = _Row(line, source, number)
    if values.raw.get("kind") != "header":
        values.fail("kind", '"header" in the first line')
    if values.raw.get("v") != VERSION:
        values.fail("v", f"{VERSION}, the only version this release reads")
    return TraceHeader(
        t0=values.text("t0") or "",
        tokenizer=values.text("tokenizer") or "",
        block=values.tokens("block") or 0,
        text_block=values.whole("text_block"),
        salt_id=values.text("salt_id") or "",
        source=values.text("source") or "",
        redaction=values.text("redaction") or "lengths+hashes",
    )


def parse_row(line: str, source: str = "trace", number: int = 0) -> TraceRow:
    """The request in one line. Unknown fields are ignored.

    Raises:
        TraceError: not a JSON object, or a field is missing or of the wrong kind; names `source`, the line
            `number` and the field.
    """
    values = _Row(line, source, number)
    return TraceRow(
        id=values.need(values.text, "id"),
        t=values.need(values.seconds, "t"),
        prompt_tokens=values.need(values.tokens, "in"),
        output_tokens=values.need(values.tokens, "out"),
        user=values.text("user"),
        session=values.text("session"),
        turn=values.whole("turn"),
        after=values.text("after"),
        think_s=values.seconds("think_s"),
        cached=values.whole("cached"),
        max_tokens=values.whole("max_tokens"),
        prefix=values.texts("prefix"),
        stream=values.flag("stream"),
        priority=values.whole("priority", minimum=None),
        cancel_s=values.seconds("cancel_s"),
        orig=values.original("orig"),
        estimated=values.texts("estimated"),
    )


def parse_rows(
    numbered: Iterable[tuple[int, str]], header: TraceHeader, source: str = "trace"
) -> Iterator[TraceRow]:
    """The requests in the numbered lines after the header. They come in the order of their ends: sort them
    by `t` for that of their arrivals. Headers of further parts of the same recording may lie between them,
    as in parts that were put together.

    Raises:
        TraceError: as `parse_row`, or where another recording begins.
    """
    for number, line in numbered:
        if '"kind"' not in line or not is_header(line):
            yield parse_row(line, source, number)
        elif parse_header(line, source, number) != header:
            raise TraceError(
                f"{source}, line {number}: another recording begins here; keep it in its own file"
            )


class _Row:
    """One line's values, taken by kind; None when absent."""

    def __init__(self, line: str, source: str, number: int) -> None:
        self._where = f"{source}, line {number}"
        try:
            raw = parse_json(line)
        except ValueError as error:
            raise TraceError(f"{self._where}: not JSON ({error})") from None
        if not isinstance(raw, dict):
            raise TraceError(f"{self._where}: not a JSON object")
        self.raw: dict[str, Any] = raw

    def fail(self, name: str, wanted: str, value: Any = None) -> Any:
        found = shown(self.raw.get(name) if value is None else value)
        raise TraceError(f"{self._where}: {name} must be {wanted}, not {found}")

    def need(self, take: Callable[[str], Any], name: str) -> Any:
        if self.raw.get(name) is None:
            raise TraceError(f"{self._where}: {name} is missing")
        return take(name)

    def text(self, name: str) -> str | None:
        value = self.raw.get(name)
        if value is None or isinstance(value, str):
            return value
        return str(value) if _is_whole(value) else str(self.fail(name, "text"))

    def whole(self, name: str, minimum: int | None = 0) -> int | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if _is_whole(value) and (minimum is None or value >= minimum):
            return int(value)
        return int(self.fail(name, "a whole number" + ("" if minimum is None else f" from {minimum}")))

    def tokens(self, name: str) -> int | None:
        """A length; what is counted by lengths must not be counted for ever."""
        value = self.whole(name)
        if value is None or value <= MAX_TOKENS:
            return value
        return int(self.fail(name, f"a number of tokens up to {MAX_TOKENS}"))

    def seconds(self, name: str) -> float | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if _is_seconds(value):
            return float(value)
        return float(self.fail(name, _SECONDS))

    def flag(self, name: str) -> bool | None:
        value = self.raw.get(name)
        return value if value is None or isinstance(value, bool) else bool(self.fail(name, "true or false"))

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.raw.get(name)
        if value is None:
            return ()
        if isinstance(value, list) and {type(item) for item in value} <= {str, int}:
            return tuple(map(str, value))
        return tuple(self.fail(name, "a list of block hashes"))

    def original(self, name: str) -> TraceOriginal | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(name, "an object")
        known = {key: item for key, item in value.items() if key in _ORIGINAL and item is not None}
        for key, item in known.items():
            if not (_is_name(item) if key in _ORIGINAL_NAMES else _is_seconds(item)):
                wanted = "a text or a number" if key in _ORIGINAL_NAMES else _SECONDS
                self.fail(f"{name}.{key}", wanted, item)
        return TraceOriginal(**known)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_name(value: Any) -> bool:
    return isinstance(value, int | str)


def _is_seconds(value: Any) -> bool:
    return type(value) in (float, int) and 0 <= value <= MAX_SECONDS
