import json
from pathlib import Path

from loadtests.traces.files import open_trace
from tests.loadtests.traces.writing import write


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
