from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.core.trace_parts import Parts, part_name, renamed_aside


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=30), max_size=40),
    st.integers(0, 90),
)
def test_parts_hold_every_line_once_under_their_own_header(lines: list[str], max_bytes: int) -> None:
    parts = Parts(lambda: "header", max_bytes)
    files: dict[int, str] = {}
    for line in lines:
        number, text = parts.place(line)
        files[number] = files.get(number, "") + text
    assert list(files) == list(range(1, len(files) + 1))
    bodies = [text.split("\n")[:-1] for text in files.values()]
    assert all(body[0] == "header" for body in bodies)
    assert [line for body in bodies for line in body[1:]] == lines
    if max_bytes == 0:
        assert len(files) <= 1
    else:
        assert all(
            len(text.encode()) <= max_bytes or len(body) == 2
            for text, body in zip(files.values(), bodies, strict=True)
        )


def test_names_of_parts_sort_beside_the_first() -> None:
    assert [part_name("monday.jsonl", n) for n in (1, 2, 10)] == [
        "monday.jsonl",
        "monday.part-2.jsonl",
        "monday.part-10.jsonl",
    ]
    assert part_name("trace", 2) == "trace.part-2"


def test_an_earlier_recording_is_set_aside_whole() -> None:
    taken = ["a.jsonl", "a.part-2.jsonl", "a.1.part-2.jsonl", "b.jsonl", "a.part-x.jsonl", "aXjsonl"]
    assert renamed_aside("a.jsonl", taken) == {"a.jsonl": "a.2.jsonl", "a.part-2.jsonl": "a.2.part-2.jsonl"}
    assert renamed_aside("new.jsonl", taken) == {}
