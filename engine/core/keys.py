"""Key files: one key a line; empty lines and lines that begin with # do not count."""

from __future__ import annotations


def parse_keys(text: str) -> tuple[str, ...]:
    """The keys in a file's text, in order. A server takes all of them, a client sends the first."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))
