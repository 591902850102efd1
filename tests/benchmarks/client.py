"""A plain streaming client for benchmarks: threads, httpx, and a stamp for every event with text.

It shares no code with the load tests on purpose: what the tuner promises is checked by somebody else.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import httpx

_WORDS = [
    "river",
    "stone",
    "market",
    "window",
    "garden",
    "engine",
    "silver",
    "morning",
    "paper",
    "letter",
    "winter",
    "orange",
    "bridge",
    "castle",
    "shadow",
    "forest",
    "summer",
    "copper",
    "island",
    "harbor",
    "meadow",
    "candle",
    "thunder",
    "basket",
    "violin",
    "ladder",
    "pocket",
    "saddle",
]


def text_of(num_words: int, seed: int) -> str:
    rng = random.Random(seed)
    return f"{rng.random()} " + " ".join(rng.choice(_WORDS) for _ in range(num_words))


@dataclass(slots=True)
class Answer:
    """One streamed answer. Instants are `time.perf_counter` seconds."""

    sent_at_s: float = 0.0
    stamps_s: list[float] = field(default_factory=list)
    status: int = 0

    @property
    def ttft_s(self) -> float:
        return self.stamps_s[0] - self.sent_at_s

    def gaps_s(self, since_s: float, until_s: float) -> list[float]:
        """Gaps that end within an interval."""
        return [b - a for a, b in pairwise(self.stamps_s) if since_s <= b and a <= until_s]


class Streamer(threading.Thread):
    """Asks on a thread of its own; `leave` closes the connection at the next event."""

    def __init__(self, url: str, text: str, max_tokens: int, extra: Mapping[str, Any] | None = None) -> None:
        super().__init__(daemon=True)
        self.answer = Answer()
        self.streaming = threading.Event()
        self._url = url
        self._leaving = False
        self._body = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": max_tokens,
            "stream": True,
            "temperature": 0,
            **(extra or {}),
        }

    def leave(self) -> None:
        self._leaving = True

    def run(self) -> None:
        answer = self.answer
        with httpx.Client(timeout=600) as client:
            answer.sent_at_s = time.perf_counter()
            with client.stream("POST", f"{self._url}/v1/chat/completions", json=self._body) as response:
                answer.status = response.status_code
                for line in response.iter_lines():
                    self._take(line, time.perf_counter())
                    if self._leaving:
                        return

    def _take(self, line: str, at_s: float) -> None:
        if not line.startswith("data: {"):
            return
        event = json.loads(line[len("data: ") :])
        delta = event["choices"][0].get("delta", {}) if event.get("choices") else {}
        # Tokens without text count where the server tells of them: half a character is no stall.
        if delta.get("content") or event.get("num_tokens"):
            self.answer.stamps_s.append(at_s)
            self.streaming.set()
