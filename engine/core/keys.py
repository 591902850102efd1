"""Key files: what they hold. The same file serves the server and everybody who talks to it."""

from __future__ import annotations


def parse_keys(text: str) -> tuple[str, ...]:
    """One key a line; empty lines and lines that begin with # do not count."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))
