import json
from pathlib import Path

import pytest

from engine.core.errors import TraceError
from loadtests.traces.files import open_trace
from tests.loadtests.traces.writing import COUNTING, write

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
