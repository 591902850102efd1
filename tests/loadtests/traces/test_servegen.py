from pathlib import Path

from loadtests.traces.files import open_trace
from tests.loadtests.traces.writing import write


def test_servegen(tmp_path: Path) -> None:
    path = write(tmp_path, "timestamp_s,client,input_tokens,output_tokens", "0.793,14,20,2")
    (row,) = open_trace(path).rows
    assert (row.t, row.user, row.prompt_tokens, row.output_tokens) == (0.793, "14", 20, 2)
