"""Text that others wrote as JSON: whatever is wrong with it is a ValueError."""

from __future__ import annotations

import json
from typing import Any

_SHOWN_CHARS = 60


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; bytes are UTF-8.

    Raises:
        ValueError: not JSON, nested too deeply, or with half a surrogate pair in a string, which could be
            neither printed nor stored.
    """
    plain = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    try:
        value = json.loads(plain)
        if "\\ud" in plain or "\\uD" in plain:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:
        if type(error) is ValueError:  # it would speak of Python's settings
            raise ValueError("a number has too many digits") from None
        raise
    return value


def shown(value: Any) -> str:
    """A value of a JSON text as it is written there, cut where it is long: to be named in a complaint."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
