import json
from pathlib import Path

import pytest

from engine.core.errors import TraceError
from loadtests.traces.files import open_trace
from loadtests.traces.reading import Reading
from tests.loadtests.traces.writing import COUNTING, write


def test_mooncake(tmp_path: Path) -> None:
    line = {"timestamp": 1500, "input_length": 600, "output_length": 5, "hash_ids": [0, 9], "delay": 20}
    trace = open_trace(write(tmp_path, json.dumps(line)))
    (row,) = trace.rows
    assert (trace.format, trace.header.block) == ("mooncake", 512)
    assert (row.t, row.prompt_tokens, row.output_tokens, row.prefix, row.think_s) == (
        1.5,
        600,
        5,
        ("0", "9"),
        0.02,
    )


def test_aiperf_turns_add_to_the_conversation_unless_they_say_otherwise(tmp_path: Path) -> None:
    def turn(session: str, **fields: object) -> str:
        return json.dumps({"session_id": session, "output_length": 50} | fields)

    whole = {"context_mode": "message_array_with_responses"}
    trace = open_trace(
        write(
            tmp_path,
            turn("a", timestamp=1000, input_length=1000, hash_ids=[7, 8]),
            turn("b", timestamp=1500, input_length=1000, hash_ids=[7, 9], **whole),
            turn("a", delay=2000, input_length=100),
            turn("b", timestamp=4000, delay=500, input_length=1100, hash_ids=[7, 9, 11], **whole),
        )
    )
    first, whole_first, added, whole_second = trace.rows
    assert (added.prompt_tokens, added.after, added.turn, added.think_s) == (1150, first.id, 2, 2.0)
    assert added.t == 3.0
    assert added.prefix[:1] == ("7",)
    assert len(added.prefix) == 2
    assert (whole_second.prompt_tokens, whole_second.prefix) == (1100, ("7", "9", "11"))
    assert (whole_second.after, whole_second.think_s) == (whole_first.id, 0.5)
    assert trace.notes.lines == (
        "1 turns have no timestamp: placed their delay after the turn before was sent",
        "1 turns give only what they add: the conversation so far was put before it",
    )


def test_aiperf_text_is_counted_when_a_tokenizer_is_given(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "four words in here"}]
    lines = [
        {"timestamp": 0, "text_input": "three words here", "output_length": 5},
        {"timestamp": 0, "messages": messages, "output_length": 5},
        {"timestamp": 0, "payload": {"messages": messages, "max_tokens": 9}},
        {"timestamp": 0, "payload": {"prompt": "two words"}, "output_length": 5},
    ]
    path = write(tmp_path, *map(json.dumps, lines))
    rows = list(open_trace(path, COUNTING).rows)
    assert [(r.prompt_tokens, r.output_tokens) for r in rows] == [(3, 5), (4, 5), (4, 9), (2, 5)]
    with pytest.raises(TraceError, match=r"line 1: text_input holds text; name a tokenizer .*--tokenizer"):
        list(open_trace(path).rows)


def test_requests_without_times_are_placed_by_a_seeded_process_and_it_is_said(tmp_path: Path) -> None:
    path = write(tmp_path, *[json.dumps({"input_length": 5, "output_length": 2})] * 20)
    trace = open_trace(path, Reading(seed=3, sessions_per_minute=60))
    times = [row.t for row in trace.rows]
    assert times == sorted(set(times))
    assert times == [row.t for row in open_trace(path, Reading(seed=3, sessions_per_minute=60)).rows]
    assert times != [row.t for row in open_trace(path, Reading(seed=4, sessions_per_minute=60)).rows]
    assert trace.notes.lines == (
        "20 requests have no timestamp: placed by a Poisson process of 60 a minute (seed 3)",
    )
