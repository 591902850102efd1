"""Trace files to read, and a tokenizer without a file."""

from pathlib import Path
from typing import Any

from loadtests.traces.reading import Reading

AGENTS_HEAD = "session,agent,turn,t_s,input_tokens,output_tokens,cached_prefix_tokens,think_s,api_s,stop"


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "trace.bin"  # a name that says nothing
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class WordCounter:
    """A token a word."""

    def text(self, text: str) -> int:
        return len(text.split())

    def messages(self, messages: list[dict[str, Any]]) -> int:
        return sum(self.text(message["content"]) for message in messages)


COUNTING = Reading(counter=WordCounter())
