from pathlib import Path

import pytest

from loadtests.traces.files import open_trace
from tests.loadtests.traces.writing import write


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
