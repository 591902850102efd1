"""Streams that a load client has to read exactly, each with what it should make of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engine.core.records import Outcome
from loadtests.selftest.scripted_server import (
    COMMENT,
    DONE,
    EMPTY_DELTA,
    ROLE_ONLY,
    Script,
    Write,
    event,
    text,
)

PROMPT_TOKENS = 32
STALL_S = 0.5
RETRY_AFTER_S = 0.1


@dataclass(frozen=True, slots=True)
class Case:
    """A script, and what a request for it comes to."""

    name: str
    script: Script
    num_tokens: int = 0
    outcome: Outcome = Outcome.COMPLETED

    @property
    def num_events(self) -> int:
        return sum(write.num_events for write in self.script.writes)


def _ending(num_tokens: int) -> bytes:
    """Finish, then usage alone, then the end: none of them content."""
    usage = event(None, usage_tokens=num_tokens, prompt_tokens=PROMPT_TOKENS)
    return event({}, finish="length") + usage + DONE


def _steady() -> Script:
    words = [Write(0.01, COMMENT + text(), 1) for _ in range(30)]
    return Script((Write(0.02, ROLE_ONLY), *words, Write(0.0, _ending(30))))


def _stalled() -> Script:
    """The stall is filled with keep-alives, which must not shorten it."""
    before, after = [Write(0.02, text(), 1)] * 5, [Write(0.02, text(), 1)] * 5
    stall = [Write(STALL_S / 4, COMMENT)] * 3 + [Write(STALL_S / 4, text(), 1)]
    return Script((*before, *stall, *after, Write(0.0, _ending(11))))


def _packed() -> Script:
    """Three events in one packet, one event over three packets, several tokens in one event."""
    whole = text(" split")
    return Script(
        (
            Write(0.01, ROLE_ONLY + text() + text() + text(), 3),
            Write(0.03, whole[:9]),
            Write(0.03, whole[9:-1]),
            Write(0.03, whole[-1:], 1),
            Write(0.04, EMPTY_DELTA),
            Write(0.04, text(" four more tokens here", usage_tokens=8, prompt_tokens=PROMPT_TOKENS), 1),
            Write(0.0, _ending(8)),
        ),
        chunked=False,
    )


def _reasoning() -> Script:
    thoughts = [Write(0.03, event({"reasoning_content": " hm"}), 1)] * 3
    return Script((Write(0.02, ROLE_ONLY), *thoughts, *[Write(0.02, text(), 1)] * 3, Write(0.0, _ending(6))))


def _tool_call() -> Script:
    def part(**function: str) -> bytes:
        return event({"tool_calls": [{"index": 0, "function": function}]})

    arguments = [Write(0.03, part(arguments=piece), 1) for piece in ('{"city"', ': "Ghent"', "}")]
    return Script((Write(0.03, part(name="weather"), 1), *arguments, Write(0.0, _ending(4))))


def _crumbled() -> Script:
    """Lines end in CR LF, and packets of seven bytes cut those, characters and the chunk framing."""
    events = [text(" häß🦊lich", num_tokens=2)] * 5
    writes = [Write(0.03, data.replace(b"\n", b"\r\n"), 1) for data in events]
    end = Write(0.0, _ending(10).replace(b"\n", b"\r\n"))
    return Script((*writes, end), packet_bytes=7, packet_gap_s=0.0005)


def _slow_head() -> Script:
    return Script((*[Write(0.02, text(), 1)] * 3, Write(0.0, _ending(3))), head_pause_s=0.15)


def _cut() -> Script:
    return Script(tuple([Write(0.02, text(), 1)] * 4), is_cut=True)


def _refusal(status: int) -> Script:
    return Script(status=status, headers={"Retry-After": str(RETRY_AFTER_S)})


# By max_tokens, which is how a request names its script.
CASES: Mapping[int, Case] = {
    11: Case("a stall among keep-alives", _stalled(), 11),
    30: Case("role first, then a steady stream", _steady(), 30),
    10: Case("CR LF in tiny packets", _crumbled(), 10),
    8: Case("events joined and split", _packed(), 8),
    6: Case("reasoning first", _reasoning(), 6),
    4: Case("a tool call", _tool_call(), 4),
    3: Case("slow headers", _slow_head(), 3),
    12: Case("a stream cut off", _cut(), 4, Outcome.FAILED),
    1: Case("429 with Retry-After", _refusal(429), outcome=Outcome.REFUSED),
    2: Case("503 with Retry-After", _refusal(503), outcome=Outcome.REFUSED),
}
