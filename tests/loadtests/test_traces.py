import json
from pathlib import Path

import pytest

from engine.core.errors import TraceError
from engine.core.trace import TraceHeader, TraceRow, format_header, format_row
from loadtests.traces.files import open_trace

REAL = Path(__file__).parents[3] / "shared" / "traces"


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "trace.bin"  # a name that says nothing
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


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


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["timestamp_s,client,input_tokens,output_tokens", "x,1,2,3"], "line 2: timestamp_s must be"),
        (["timestamp_s,client,input_tokens,output_tokens", "1,1,2"], "line 2: the row must be 4 cells"),
        (["timestamp_s,client,input_tokens,output_tokens", "1,1,2.5,3"], "line 2: input_tokens must be"),
        (["timestamp_s,client,input_tokens,output_tokens", "", "nan,1,2,3"], "line 3: timestamp_s must be"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "yesterday,1,2"], "line 2: TIMESTAMP must be"),
        (['{"timestamp": 1, "input_length": 1, "output_length": -1}'], "line 1: output_length must be"),
        (['{"timestamp": 1, "input_length": 1}'], "line 1: output_length must be"),
        (['{"timestamp": 1, "input_length": 1, "output_length": 1}', "{oops"], "line 2: not JSON"),
        (['{"timestamp": 1, "input_length": 1, "output_length": 1}', "[" * 30_000], "line 2: not JSON"),
        (["[" * 30_000], "line 1: no known trace format"),
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
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not UTF-8"):
        open_trace(binary)


@pytest.mark.skipif(not REAL.is_dir(), reason="the sample traces are not here")
@pytest.mark.parametrize(
    ("name", "form", "num_rows"),
    [
        ("AzureLLMInferenceTrace_conv.csv", "azure", 19366),
        ("mooncake_synthetic_trace.jsonl", "mooncake", 3993),
        ("servegen_m-small_1h_1rps.csv", "servegen", 3589),
    ],
)
def test_published_traces_read_whole(name: str, form: str, num_rows: int) -> None:
    trace = open_trace(REAL / name)
    rows = list(trace.rows)
    assert (trace.format, len(rows)) == (form, num_rows)
    assert all(row.t >= 0 and row.prompt_tokens >= 0 for row in rows)
