"""Text that others wrote as JSON: whatever is wrong with it is a ValueError."""

from __future__ import annotations

import json
from typing import Any


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
    return value
