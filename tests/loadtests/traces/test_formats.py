import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.core.errors import TraceError
from engine.core.trace import TraceHeader, TraceRow, format_header, format_row
from loadtests.traces.files import open_trace
from loadtests.traces.reading import Reading
from tests.loadtests.traces_here import SAMPLES


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "trace.bin"  # a name that says nothing
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _in_utf16(text: bytes) -> bytes:
    return text.decode().encode("utf-16")


def test_our_own_format(tmp_path: Path) -> None:
    row = TraceRow(id="a", t=1.5, prompt_tokens=10, output_tokens=2, prefix=("h",))
    trace = open_trace(write(tmp_path, format_header(TraceHeader(block=64)), format_row(row)))
    assert (trace.format, trace.header.block, list(trace.rows)) == ("evenflow", 64, [row])


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


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:50.9951690"),
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:04.324509+00:00"),
    ],
)
def test_azure_in_both_its_stamps(tmp_path: Path, first: str, second: str) -> None:
    path = write(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens", f"{first},374,44", f"{second},396,109")
    rows = list(open_trace(path).rows)
    assert open_trace(path).format == "azure"
    assert [(row.prompt_tokens, row.output_tokens) for row in rows] == [(374, 44), (396, 109)]
    assert rows[0].t == 0
    assert rows[1].t == pytest.approx(4.314579, abs=1e-6)


def test_servegen(tmp_path: Path) -> None:
    path = write(tmp_path, "timestamp_s,client,input_tokens,output_tokens", "0.793,14,20,2")
    (row,) = open_trace(path).rows
    assert (row.t, row.user, row.prompt_tokens, row.output_tokens) == (0.793, "14", 20, 2)


def test_burstgpt_with_a_failed_request_and_later_columns(tmp_path: Path) -> None:
    head = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"
    path = write(tmp_path, head, "5,7,2.5,ChatGPT,472,18,490,Conversation log", "9,,,GPT-4,5,0,5,API log")
    good, failed = open_trace(path).rows
    assert (good.session, good.orig and good.orig.e2e_s) == ("7", 2.5)
    assert failed.orig is not None
    assert failed.orig.status == "failed"


class WordCounter:
    """A token a word."""

    def text(self, text: str) -> int:
        return len(text.split())

    def messages(self, messages: list[dict[str, Any]]) -> int:
        return sum(self.text(message["content"]) for message in messages)


COUNTING = Reading(counter=WordCounter())


def test_burstgpt_says_which_of_its_columns_have_no_place(tmp_path: Path) -> None:
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    trace = open_trace(write(tmp_path, head, "5,ChatGPT,472,18,490,API log", "6,GPT-4,1,1,2,API log"))
    assert [row.session for row in trace.rows] == [None, None]
    assert trace.notes.lines == (
        "2 values of Model left out: a trace row has no place for it",
        "2 values of Log Type left out: a trace row has no place for it",
    )


def test_a_first_line_of_any_length_is_read_whole(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 20_000 * 512, "output_length": 1, "hash_ids": list(range(20_000))}
    first, second = open_trace(write(tmp_path, "", json.dumps(line), json.dumps(line))).rows
    assert len(first.prefix) == len(second.prefix) == 20_000
    assert (first.id, second.id) == ("mooncake-2", "mooncake-3")


def test_files_as_spreadsheets_write_them(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    text = 'timestamp_s,client,input_tokens,output_tokens\r\n\r\n0.5,"a,b",20,2\r\n1.5,c,"30",4\r\n'
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [(r.user, r.prompt_tokens) for r in open_trace(path).rows] == [("a,b", 20), ("c", 30)]


def test_bailian_names_sessions_by_the_chat_they_began_with(tmp_path: Path) -> None:
    def chat(chat_id: int, parent: int, turn: int) -> str:
        length = {"input_length": 40 * turn, "output_length": 7, "hash_ids": [1, 2, 3]}
        return json.dumps(
            {
                "chat_id": chat_id,
                "parent_chat_id": parent,
                "timestamp": 61.5 + turn,
                "type": "text",
                "turn": turn,
            }
            | length
        )

    trace = open_trace(write(tmp_path, chat(5, -1, 1), chat(9, 5, 2), chat(12, 9, 3), chat(13, -1, 1)))
    rows = list(trace.rows)
    assert (trace.format, trace.header.block) == ("bailian", 16)
    assert [(r.id, r.session, r.turn, r.after) for r in rows] == [
        ("5", "5", 1, None),
        ("9", "5", 2, "5"),
        ("12", "5", 3, "9"),
        ("13", "13", 1, None),
    ]
    assert (rows[0].t, rows[0].prefix) == (62.5, ("1", "2", "3"))


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


AGENTS = [
    "session,agent,turn,t_s,input_tokens,output_tokens,cached_prefix_tokens,think_s,api_s,stop",
    "s1,0,0,0.0,1000,50,0,0.0,5.5,tool_use",
    "s1,0,1,12.0,1200,20,960,6.5,,end_turn",
    "s1,1,0,14.0,300,20,0,0.0,1.0,end_turn",
    "s1,0,2,30.0,500,20,128,,1.0,",
    "s2,0,0,0.0,900,5,0,0.0,2.0,end_turn",
]


def test_agent_sessions_become_turns_and_share_what_was_cached(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path, *AGENTS), Reading(sessions_per_minute=0))
    first, second, other, third, next_session = trace.rows
    assert trace.format == "agents"
    assert [r.t for r in (first, second, other, third, next_session)] == [0, 12, 14, 30, 0]
    assert (second.session, second.turn, second.after, second.think_s) == ("s1", 1, first.id, 6.5)
    assert (other.session, other.after) == ("s1/1", None)
    assert (third.after, third.think_s) == (second.id, None)
    assert (first.orig and first.orig.e2e_s, second.orig) == (5.5, None)
    assert len(first.prefix) == 1000 // 64
    assert second.prefix[:15] == first.prefix[:15]
    assert not set(second.prefix[15:]) & set(first.prefix)
    assert third.prefix[:2] == first.prefix[:2]
    assert not set(third.prefix[2:]) & set(second.prefix)
    assert trace.notes.lines[0] == "2 sessions have a clock of their own: placed at 0"


def test_agent_sessions_start_by_a_seeded_process_and_come_in_order(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        AGENTS[0],
        *[f"s{i},0,{turn},{40.0 * turn},9,9,0,0.0,1,x" for i in range(9) for turn in range(5)],
    )
    rows = list(open_trace(path, Reading(seed=1)).rows)
    assert [r.t for r in rows] == sorted(r.t for r in rows)
    assert len({r.t for r in rows if r.turn == 0}) == 9
    assert rows == list(open_trace(path, Reading(seed=1)).rows)


CONVERSATIONS = [
    {
        "id": "x",
        "conversations": [
            {"from": "human", "value": "one two three"},
            {"from": "gpt", "value": "four five"},
            {"from": "human", "value": "six"},
            {"from": "gpt", "value": "seven eight nine ten"},
        ],
    },
    {"id": "y", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b ]"}]},
]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(CONVERSATIONS),
        json.dumps(CONVERSATIONS, indent=2),
        "\n".join(map(json.dumps, CONVERSATIONS)),
    ],
    ids=["one line", "indented", "a line each"],
)
def test_sharegpt_answers_are_requests_with_the_conversation_before_them(tmp_path: Path, text: str) -> None:
    trace = open_trace(write(tmp_path, text), COUNTING)
    rows = sorted(trace.rows, key=lambda row: row.id)
    assert trace.format == "sharegpt"
    assert [(r.prompt_tokens, r.output_tokens, r.session, r.turn) for r in rows] == [
        (3, 2, "sharegpt-1", 1),
        (6, 4, "sharegpt-1", 2),
        (1, 2, "sharegpt-2", 1),
    ]
    assert rows[1].after == rows[0].id
    assert rows[1].think_s == pytest.approx(rows[1].t - rows[0].t)
    assert "conversations have no times: placed by a Poisson process" in trace.notes.lines[0]
    with pytest.raises(TraceError, match="name a tokenizer"):
        open_trace(write(tmp_path, text))


def test_a_long_array_on_one_line_is_read_piece_by_piece(tmp_path: Path) -> None:
    many = [
        {"id": i, "conversations": [{"from": "human", "value": "w " * 9000}, {"from": "gpt", "value": "ok"}]}
        for i in range(30)
    ]
    rows = list(open_trace(write(tmp_path, json.dumps(many)), COUNTING).rows)
    assert [(r.prompt_tokens, r.output_tokens) for r in rows] == [(9000, 1)] * 30


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            '[{"conversations": []}, {"conversations": 5}]',
            "line 1: conversations of conversation 2 must be a list",
        ),
        (
            '[{"conversations": []},\n{"conversations": [{"from": "gpt"}]}]',
            "line 2: conversations of conversation 2",
        ),
        ('[{"conversations": []},\n{"conversations": ', "line 2: not a whole JSON array"),
        ('[{"conversations": []}', "line 2: not a whole JSON array"),
    ],
)
def test_a_broken_array_is_one_line_with_file_line_and_field(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(TraceError) as caught:
        list(open_trace(write(tmp_path, text), COUNTING).rows)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["timestamp_s,client,input_tokens,output_tokens", "x,1,2,3"], "line 2: timestamp_s must be"),
        (["timestamp_s,client,input_tokens,output_tokens", "1,1,2"], "line 2: the row must be 4 cells"),
        (["timestamp_s,client,input_tokens,output_tokens", "1,1,2.5,3"], "line 2: input_tokens must be"),
        (["timestamp_s,client,input_tokens,output_tokens", "", "nan,1,2,3"], "line 3: timestamp_s must be"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "yesterday,1,2"], "line 2: TIMESTAMP must be"),
        (
            ["TIMESTAMP,ContextTokens,GeneratedTokens", "0001-01-01 00:00:00+14:00,1,2"],
            "line 2: TIMESTAMP must be",
        ),
        (
            ["timestamp_s,client,input_tokens,output_tokens", f"1,1,{'9' * 6000},3"],
            "line 2: input_tokens must",
        ),
        ([AGENTS[0], f"a,0,0,0,{10**12},1,0,,,"], "line 2: input_tokens must be"),
        (['{"timestamp": 1, "input_length": 1, "output_length": -1}'], "line 1: output_length must be"),
        (['{"timestamp": 1, "input_length": 1}'], "line 1: output_length must be"),
        (['{"timestamp": 1, "input_length": 1, "output_length": 1}', "{oops"], "line 2: not JSON"),
        (['{"timestamp": 1, "input_length": 1, "output_length": 1}', "[" * 30_000], "line 2: not JSON"),
        (["[" * 30_000], "line 1: no known trace format"),
        (
            ['{"input_length": 5, "text_input": "x", "output_length": 1}'],
            "line 1: the input must be exactly one",
        ),
        (
            ['{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": 5}'],
            "hash_ids must be a list",
        ),
        (['{"input_length": 5, "output_length": 1, "session_id": []}'], "line 1: session_id must be"),
        (['{"input_length": 5, "output_length": null}'], "line 1: output_length must be"),
        (['{"chat_id": 1, "timestamp": 1, "input_length": 1}'], "line 1: output_length must be"),
        (['{"chat_id": [], "timestamp": 1, "input_length": 1}'], "line 1: chat_id must be"),
        (["Timestamp,Request tokens,Response tokens", "1,x,5"], "line 2: Request tokens must be"),
        (
            ["Timestamp,Request tokens,Response tokens,Elapsed time", "1,2,5,z"],
            "line 2: Elapsed time must be",
        ),
        ([AGENTS[0], "a,0,x,0,1,1,0,,,"], "line 2: turn must be"),
        (["session,turn,t_s,cached_prefix_tokens"], "line 1: the header must be one with a column 'agent'"),
        (
            ["timestamp_s,client,input_tokens,output_tokens", '1,"a\nb",1,1', "2,a,b,1"],
            "line 4: input_tokens must",
        ),
        (["hello"], "line 1: no known trace format"),
        (['{"a": 1}'], "line 1: no known trace format"),
        ([""], "the file is empty"),
        (['{"v": 9, "kind": "header"}'], "line 1: v must be 1"),
    ],
)
def test_an_unreadable_trace_is_one_line_with_file_line_and_field(
    tmp_path: Path, lines: list[str], complaint: str
) -> None:
    path = write(tmp_path, *lines)
    with pytest.raises(TraceError) as caught:
        list(open_trace(path).rows)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert complaint in message
    assert "\n" not in message


def test_a_missing_file_and_a_binary_one_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        open_trace(tmp_path / "none")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xff\x00")
    with pytest.raises(TraceError, match="not UTF-8"):
        open_trace(binary)


@pytest.mark.parametrize(
    ("pack", "remedy"),
    [(gzip.compress, "gunzip"), (bz2.compress, "bunzip2"), (lzma.compress, "unxz"), (_in_utf16, "iconv")],
)
def test_a_file_that_must_be_unpacked_first_says_with_what(
    tmp_path: Path, pack: Callable[[bytes], bytes], remedy: str
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(pack(b'{"timestamp": 1, "input_length": 1, "output_length": 1}\n'))
    with pytest.raises(TraceError, match=remedy):
        open_trace(path)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample traces are not here")
@pytest.mark.parametrize(
    ("name", "form", "num_rows"),
    [
        ("AzureLLMInferenceTrace_conv.csv", "azure", 19366),
        ("coding_agents_max64k.csv", "agents", 1121),
        ("mooncake_synthetic_trace.jsonl", "mooncake", 3993),
        ("servegen_m-small_1h_1rps.csv", "servegen", 3589),
    ],
)
def test_published_traces_read_whole(name: str, form: str, num_rows: int) -> None:
    trace = open_trace(SAMPLES / name)
    rows = list(trace.rows)
    assert (trace.format, len(rows)) == (form, num_rows)
    assert all(row.t >= 0 and row.prompt_tokens >= 0 for row in rows)
