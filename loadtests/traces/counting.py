"""Counts the tokens of text: with a tokenizer's file, or by asking an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.core.errors import TraceError
from loadtests.client.target import Target, call, model_name
from loadtests.errors import TargetError
from loadtests.traces.reading import TokenCounter


def open_counter(file_or_url: str, api_key: str | None = None) -> TokenCounter:
    """A counter by a `tokenizer.json`, a folder that holds one, or an engine's address.

    Raises:
        TraceError: no such file, not a tokenizer, or nobody answers.
    """
    if file_or_url.startswith(("http://", "https://")):
        return _Remote(Target(file_or_url, api_key=api_key))
    path = Path(file_or_url)
    return _Local(path / "tokenizer.json" if path.is_dir() else path)


class _Local:
    """Counts with the tokenizers library; of a conversation the contents only, without a chat template."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        if not path.is_file():
            raise TraceError(f"{path}: no such tokenizer file; name a tokenizer.json or an engine's URL")
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001  the library raises plain Exception
            raise TraceError(f"{path}: not a tokenizer.json ({error})") from None

    def text(self, text: str) -> int:
        return len(self._tokenizer.encode(_encodable(text), add_special_tokens=False).ids)

    def messages(self, messages: list[dict[str, Any]]) -> int:
        return sum(self.text(_content(message)) for message in messages)


class _Remote:
    """Asks an engine's `POST /tokenize`."""

    def __init__(self, target: Target) -> None:
        self._target, self._model = target, self._tried(lambda: model_name(target))

    def text(self, text: str) -> int:
        return self._count({"prompt": _encodable(text)}) if text else 0

    def messages(self, messages: list[dict[str, Any]]) -> int:
        plain = [{"role": str(m.get("role", "user")), "content": _encodable(_content(m))} for m in messages]
        return self._count({"messages": plain})

    def _count(self, body: dict[str, Any]) -> int:
        url = f"{self._target.url}/tokenize"
        status, answer = self._tried(
            lambda: call(self._target, "POST", "/tokenize", {"model": self._model, **body})
        )
        if status != 200 or not isinstance(answer, dict) or not isinstance(answer.get("count"), int):
            raise TraceError(f"{url} gave no count (HTTP {status})")
        return int(answer["count"])

    @staticmethod
    def _tried(ask: Any) -> Any:
        try:
            return ask()
        except TargetError as error:
            raise TraceError(str(error)) from error


def _content(message: dict[str, Any]) -> str:
    """The text of a message; of one made of parts, their texts."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _encodable(text: str) -> str:
    """Without halves of surrogate pairs, which no tokenizer takes."""
    return text.encode("utf-8", "replace").decode()
