import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.core.errors import TraceError
from engine.core.trace import TraceHeader, TraceRow, format_header, format_row
from loadtests.traces.files import open_trace
from tests.loadtests.traces.writing import AGENTS_HEAD, write
from tests.loadtests.traces_here import SAMPLES


def _in_utf16(text: bytes) -> bytes:
    return text.decode().encode("utf-16")


def test_our_own_format(tmp_path: Path) -> None:
    row = TraceRow(id="a", t=1.5, prompt_tokens=10, output_tokens=2, prefix=("h",))
    trace = open_trace(write(tmp_path, format_header(TraceHeader(block=64)), format_row(row)))
    assert (trace.format, trace.header.block, list(trace.rows)) == ("evenflow", 64, [row])


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
        ([AGENTS_HEAD, f"a,0,0,0,{10**12},1,0,,,"], "line 2: input_tokens must be"),
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
        ([AGENTS_HEAD, "a,0,x,0,1,1,0,,,"], "line 2: turn must be"),
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
