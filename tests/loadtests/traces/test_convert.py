import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import TraceError
from engine.core.trace import TraceHeader, TraceRow, format_header, format_row
from loadtests.traces.convert import Conversion, convert
from loadtests.traces.files import Trace, open_trace
from loadtests.traces.reading import Reading
from loadtests.traces.spill import sorted_rows

Converted = tuple[TraceHeader, list[TraceRow], tuple[str, ...]]
T0 = "2026-11-30T09:00:00+00:00"
HEADER = TraceHeader(t0=T0, block=64, salt_id="salt")


def row(request_id: str, t: float, prompt: int = 100, output: int = 10, **fields: object) -> TraceRow:
    return TraceRow(id=request_id, t=t, prompt_tokens=prompt, output_tokens=output, **fields)  # type: ignore[arg-type]


@pytest.fixture
def convert_rows(tmp_path: Path) -> Callable[..., Converted]:
    """Converts lists of rows, each with its header; gives the trace that came of it, its rows and notes."""

    def run(*traces: tuple[TraceHeader, list[TraceRow]], **wishes: object) -> Converted:
        inputs = []
        for number, (header, rows) in enumerate(traces):
            inputs.append(tmp_path / f"in{number}")
            inputs[-1].write_text("\n".join([format_header(header), *map(format_row, rows)]) + "\n")
        out = tmp_path / "out"
        num_rows, notes = convert(inputs, out, Conversion(**wishes), Reading(seed=5), force=True)  # type: ignore[arg-type]
        trace: Trace = open_trace(out)
        back = list(trace.rows)
        assert num_rows == len(back)
        return trace.header, back, notes

    return run


SOUND = [row(f"r{i}", i + 0.5, user=f"u{i % 3}", prefix=("a", str(i))) for i in range(12)]


def test_a_sound_trace_comes_out_as_it_went_in(convert_rows) -> None:
    header, rows, notes = convert_rows((HEADER, SOUND))
    assert (header, rows, notes) == (replace(HEADER, source="evenflow: in0"), SOUND, ())


def test_what_replay_would_mend_is_mended_and_said(convert_rows) -> None:
    rows = [row("a", float(i // 3)) for i in reversed(range(30))] + [row("failed", 0.0, output=0)]
    _, mended, notes = convert_rows((HEADER, rows))
    assert [r.t for r in mended] == sorted({r.t for r in mended})
    assert len({r.id for r in mended}) == len(mended) == 31
    assert [note.split(" ", 1)[1][:20] for note in notes] == [
        "time stamps are whol",
        "duplicate ids rename",
    ]
    assert convert_rows((HEADER, rows))[1] == mended
    assert convert_rows((HEADER, rows), mend=False)[1] == rows


def test_the_part_that_is_kept_starts_at_zero_and_its_orphans_at_their_own_time(convert_rows) -> None:
    rows = [row("a", 1.0, session="s"), row("b", 20.0, session="s", after="a", think_s=3.0), row("c", 50.0)]
    header, cut, notes = convert_rows((HEADER, rows), start_s=10.0, end_s=40.0)
    assert [(r.id, r.t, r.after) for r in cut] == [("b", 10.0, None)]
    assert header.t0 == "2026-11-30T09:00:10+00:00"
    assert notes == ("1 turns whose previous turn is not here start at their own time",)


def test_nothing_left_is_an_error_not_an_empty_trace(convert_rows) -> None:
    with pytest.raises(TraceError, match="no request is left to write"):
        convert_rows((HEADER, SOUND), start_s=100.0)


def test_time_is_scaled_and_silences_shortened(convert_rows) -> None:
    rows = [row("a", 2.0), row("b", 502.0, after="a", think_s=300.0)]
    _, fast, _ = convert_rows((HEADER, rows), speed=2.0, max_idle_s=60.0)
    assert [(r.t, r.think_s) for r in fast] == [(1.0, None), (31.0, 30.0)]


def test_thinning_goes_by_user_and_refuses_to_go_by_row(convert_rows) -> None:
    _, kept, _ = convert_rows((HEADER, SOUND), keep_share=0.4)
    users = {r.user for r in kept}
    assert 0 < len(users) < 3
    assert kept == [r for r in SOUND if r.user in users]
    with pytest.raises(TraceError, match="no row names a user or session"):
        convert_rows((HEADER, [row("a", 0.0), row("b", 1.0)]), keep_share=0.5)


def test_rows_of_nobody_among_others_are_thinned_one_by_one_and_said(convert_rows) -> None:
    rows = SOUND + [row(f"n{i}", 20.0 + i) for i in range(9)]
    _, _, notes = convert_rows((HEADER, rows), keep_share=0.5)
    assert notes == ("9 requests name neither user nor session: each was kept or not by itself",)


def test_prompts_are_cut_to_a_context(convert_rows) -> None:
    rows = [row("a", 0.5, prompt=1000, output=10, prefix=tuple(map(str, range(16)))), row("b", 1.0)]
    _, cut, notes = convert_rows((HEADER, rows), context_tokens=330)
    assert [(r.prompt_tokens, r.output_tokens, len(r.prefix)) for r in cut] == [(320, 10, 5), (100, 10, 0)]
    assert len(notes) == 1


def test_traces_are_merged_by_their_clocks(convert_rows) -> None:
    later = replace(HEADER, t0="2026-11-30T09:00:02+00:00", salt_id="other")
    _, rows, notes = convert_rows((HEADER, SOUND[:3]), (later, SOUND[:3]))
    assert [(r.id, r.t) for r in rows] == [
        ("1/r0", 0.5),
        ("1/r1", 1.5),
        ("1/r2", 2.5),
        ("2/r0", 2.5),
        ("2/r1", 3.5),
        ("2/r2", 4.5),
    ]
    assert rows[3].user == "2/u0"
    assert rows[3].prefix == ("2/a", "2/0")
    assert notes[1] == "in1 starts at 2 s, by its own clock; --overlay starts all at 0"


def test_traces_without_clocks_or_by_wish_start_together(convert_rows) -> None:
    later = replace(HEADER, t0="2027-11-30T09:00:02+00:00")
    for second, wishes in ((later, {"overlay": True}), (TraceHeader(block=64), {})):
        header, rows, _ = convert_rows((HEADER, SOUND[:3]), (second, SOUND[:3]), **wishes)
        assert [r.t for r in rows] == [0.5, 0.5, 1.5, 1.5, 2.5, 2.5]
        assert header.t0 == ""


def test_names_from_the_same_salt_stay_the_same_and_ids_unique(convert_rows) -> None:
    header, rows, _ = convert_rows((HEADER, SOUND[:3]), (HEADER, SOUND[:3]))
    assert header.salt_id == "salt"
    assert {r.user for r in rows} == {"u0", "u1", "u2"}
    assert sorted(r.id for r in rows) == ["r0", "r0~2", "r1", "r1~2", "r2", "r2~2"]


def test_merged_traces_tell_their_prefixes_in_the_same_blocks(convert_rows) -> None:
    fine = [row("a", 0.0, prompt=256, prefix=tuple("pqrs")), row("b", 1.0, prompt=256, prefix=tuple("pqxy"))]
    coarse, odd = [row("c", 0.5, prompt=256, prefix=("k", "l"))], [row("d", 0.7, prompt=300, prefix=("m",))]
    header, rows, notes = convert_rows(
        (HEADER, fine), (replace(HEADER, block=128), coarse), (replace(HEADER, block=100), odd)
    )
    a, c, d, b = rows
    assert header.block == 128
    assert a.prefix[0] == b.prefix[0]
    assert a.prefix[1] != b.prefix[1]
    assert (c.prefix, d.prefix) == (("k", "l"), ())
    assert "1 values of prefix left out: blocks of 100 tokens cannot be told in blocks of 128 tokens" in notes


def test_redaction_leaves_no_name_and_all_equalities(convert_rows, tmp_path: Path) -> None:
    rows = [
        row(f"alice-{i}", i + 0.5, user="alice", session=f"alice{i % 2}", prefix=("alice", str(i)))
        for i in range(4)
    ]
    rows[3] = replace(rows[3], after="alice-1")
    header, hidden, _ = convert_rows((replace(HEADER, source="alice.jsonl"), rows), redact=True)
    assert "alice" not in (tmp_path / "out").read_text()
    assert hidden[3].after == hidden[1].id
    assert len({r.user for r in hidden}) == 1
    assert [r.session for r in hidden[:2]] == [r.session for r in hidden[2:]]
    assert len({r.prefix[0] for r in hidden}) == 1
    assert len({r.prefix[1] for r in hidden}) == 4
    again, hidden_again, _ = convert_rows((HEADER, rows), redact=True)
    assert header.salt_id not in (again.salt_id, "salt")
    assert hidden_again[0].user != hidden[0].user


def test_other_formats_come_out_as_asked(tmp_path: Path, convert_rows) -> None:
    (tmp_path / "azure.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    )
    convert([tmp_path / "azure.csv"], tmp_path / "m", Conversion(to="aiperf"), Reading())
    assert json.loads((tmp_path / "m").read_text()) == {
        "timestamp": 0,
        "input_length": 374,
        "output_length": 44,
    }
    with pytest.raises(TraceError, match="no format 'word'"):
        convert([tmp_path / "azure.csv"], tmp_path / "w", Conversion(to="word"), Reading())


def test_a_trace_can_be_replaced_by_itself_but_not_by_accident(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(format_header(HEADER) + "\n" + format_row(SOUND[0]) + "\n")
    with pytest.raises(TraceError, match="is there already"):
        convert([path], path, Conversion(), Reading())
    convert([path], path, Conversion(speed=2.0), Reading(), force=True)
    assert [r.t for r in open_trace(path).rows] == [0.25]


@given(st.lists(st.integers(0, 30)), st.integers(1, 7))
def test_sorting_on_disk_is_sorting(stamps, run_rows) -> None:
    rows = [row(str(i), float(t)) for i, t in enumerate(stamps)]
    assert list(sorted_rows(rows, run_rows)) == sorted(rows, key=lambda r: r.t)
