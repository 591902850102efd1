"""Coding-agent sessions: CSV of turns, on a clock that restarts with every session.

A turn's `think_s` is from the end of the turn before, `api_s` the time its answer took, and
`cached_prefix_tokens` what the provider had of its prompt from the turn before: that gives the prefix blocks
their names. Sessions start by a seeded arrival process; agents of one session share its clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from engine.core.trace import TraceHeader, TraceOriginal, TraceRow
from loadtests.traces.blocks import GrowingPrompts
from loadtests.traces.fixes import Notes
from loadtests.traces.reading import Reading, interleave, session_starts
from loadtests.traces.source import Source, cell

NAME = "agents"
CARRIES = frozenset(
    {"t", "prompt_tokens", "output_tokens", "session", "turn", "after", "think_s", "cached", "orig.e2e_s"}
)
HEADER_CARRIES: frozenset[str] = frozenset()
_COLUMNS = (
    "session",
    "agent",
    "turn",
    "t_s",
    "input_tokens",
    "output_tokens",
    "cached_prefix_tokens",
    "think_s",
    "api_s",
    "stop",
)
_BLOCK_TOKENS = 64  # providers count cached prefixes in such steps
_MAIN_AGENT = "0"

Record = tuple[int, tuple[str, ...]]


def recognises(head: str) -> bool:
    """Whether a file starting so is of this format."""
    return {name.strip() for name in head.split(",")} >= {"session", "turn", "t_s", "cached_prefix_tokens"}


def read(source: Source, reading: Reading, notes: Notes) -> tuple[TraceHeader, Iterator[TraceRow]]:
    """The requests by time; in file order when all sessions start at 0.

    Raises:
        TraceError: a line or field at fault.
    """
    starts = session_starts(reading, notes, "sessions have a clock of their own")
    sessions = (
        (start_s, _turns(source, list(records), start_s, notes))
        for (_, records), start_s in zip(groupby(source.table(_COLUMNS), _session), starts, strict=False)
    )
    header = TraceHeader(block=_BLOCK_TOKENS)
    if reading.sessions_per_minute:
        return header, interleave(sessions)
    return header, (row for _, rows in sessions for row in rows)


def _session(record: Record) -> str:
    return record[1][0]


def _turns(source: Source, records: list[Record], start_s: float, notes: Notes) -> Iterator[TraceRow]:
    prompts: dict[str, GrowingPrompts] = {}
    last: dict[str, str] = {}
    for number, cells in records:
        session, agent, turn, t_s, prompt, output, cached, think_s, api_s, stop = cells
        name = session if agent == _MAIN_AGENT else f"{session}/{agent}"
        prompt_tokens = source.whole(number, "input_tokens", prompt)
        cached_tokens = source.whole(number, "cached_prefix_tokens", cached)
        after = last.get(name)
        last[name] = f"{NAME}-{number}"
        notes.count("values of stop left out: a trace row has no place for it", int(bool(stop)))
        yield TraceRow(
            id=last[name],
            t=start_s + source.seconds(number, "t_s", t_s),
            prompt_tokens=prompt_tokens,
            output_tokens=source.whole(number, "output_tokens", output),
            session=name,
            turn=source.whole(number, "turn", turn),
            after=after,
            think_s=source.seconds(number, "think_s", think_s) if think_s and after else None,
            cached=cached_tokens,
            prefix=prompts.setdefault(name, GrowingPrompts(name, _BLOCK_TOKENS)).turn(
                prompt_tokens, cached_tokens
            ),
            orig=TraceOriginal(e2e_s=source.seconds(number, "api_s", api_s)) if api_s else None,
        )


def write(rows: Iterable[TraceRow], header: TraceHeader, notes: Notes) -> Iterator[str]:
    """The file's lines, without line breaks; a session's clock starts with its first row."""
    starts: dict[str, float] = {}
    turns: dict[str, int] = {}
    yield ",".join(_COLUMNS)
    for row in rows:
        name = row.session or row.id
        session, _, agent = name.partition("/")
        t_s = round(row.t - starts.setdefault(session, row.t), 6)
        turn = row.turn if row.turn is not None else turns.get(name, 0)
        turns[name] = turn + 1
        api_s = row.orig.e2e_s if row.orig else None
        think_s = row.think_s if row.after else 0.0
        numbers = f"{turn},{t_s!r},{row.prompt_tokens},{row.output_tokens},{row.cached or 0}"
        times = f"{'' if think_s is None else repr(think_s)},{'' if api_s is None else repr(api_s)}"
        yield f"{cell(session)},{cell(agent or _MAIN_AGENT)},{numbers},{times},"
