"""Our own format → another → our own keeps what the other can carry, and says what it cannot."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import TraceError
from engine.core.trace import TraceHeader, TraceOriginal, TraceRow
from loadtests.traces.blocks import covering, regroup
from loadtests.traces.files import FORMATS_WRITTEN, open_trace, write_trace
from loadtests.traces.fixes import Notes
from loadtests.traces.reading import Reading
from tests.loadtests.traces_here import SAMPLES

AT_ZERO = Reading(sessions_per_minute=0)
HEADER = TraceHeader(t0="2026-11-30T09:30:00.250000+00:00", block=64, salt_id="ab12")

_names = st.text(min_size=1, max_size=12)
_seconds = st.integers(0, 10**9).map(lambda microseconds: microseconds / 1e6)
_maybe = st.none() | _seconds


@st.composite
def traces(draw: st.DrawFn, block: int = 64) -> list[TraceRow]:
    """Rows in order, with unique ids, some of them turns of sessions, with blocks for whole prompts."""
    sessions: dict[str, TraceRow] = {}
    rows = []
    for number, t in enumerate(sorted(draw(st.lists(_seconds, min_size=1, max_size=12)))):
        session = draw(st.none() | st.sampled_from(["s", 'a,"b"\nc', "42"]))
        before = sessions.get(session or "")
        prompt = draw(st.integers(1, 40 * block))
        blocks = -(-prompt // block)
        row = TraceRow(
            id=draw(st.sampled_from([str(number), f"req-{number}"])),
            t=t,
            prompt_tokens=prompt,
            output_tokens=draw(st.integers(0, 500)),
            user=draw(st.none() | _names),
            session=session,
            turn=(before.turn or 0) + 1 if before else 0,
            after=before.id if before else None,
            think_s=draw(_maybe) if before else None,
            cached=draw(st.integers(0, prompt)),
            prefix=draw(
                st.sampled_from([(), tuple(f"{draw(st.sampled_from('xy'))}{b}" for b in range(blocks))])
            ),
            orig=draw(st.none() | st.builds(TraceOriginal, status=st.just(200), e2e_s=_maybe)),
        )
        rows.append(row)
        if session is not None:
            sessions[session] = row
    return rows


def there_and_back(
    rows: Sequence[TraceRow], name: str, header: TraceHeader = HEADER
) -> tuple[TraceHeader, list[TraceRow], tuple[str, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        path, notes = Path(folder) / "there", Notes()
        write_trace(path, name, header, rows, notes)
        trace = open_trace(path, AT_ZERO)
        back = list(trace.rows)
        assert trace.format == {"aiperf": "mooncake", "qwen": "bailian"}.get(name, name)
        return trace.header, back, notes.lines


def positions(rows: Sequence[TraceRow]) -> list[int | None]:
    """Where each row's previous turn stands."""
    places = {row.id: place for place, row in enumerate(rows)}
    return [None if row.after is None else places[row.after] for row in rows]


def sharing(rows: Iterable[TraceRow]) -> list[tuple[int, ...]]:
    """Blocks by number in the order in which they were first met."""
    numbers: dict[str, int] = {}
    return [tuple(numbers.setdefault(name, len(numbers)) for name in row.prefix) for row in rows]


def values(rows: Iterable[TraceRow], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(getattr(row, name) for name in ("prompt_tokens", "output_tokens", *names)) for row in rows]


@given(traces())
def test_our_own_format_keeps_all(rows) -> None:
    header, back, notes = there_and_back(rows, "evenflow", TraceHeader(t0="x", block=64, source="here"))
    assert (header, back, notes) == (TraceHeader(t0="x", block=64, source="here"), rows, ())


@given(traces(512))
def test_mooncake_keeps_lengths_sharing_and_sessions(rows) -> None:
    header, back, _ = there_and_back(rows, "mooncake", TraceHeader(block=512))
    assert header.block == 512
    assert values(back, "session") == values(rows, "session")
    assert [r.t for r in back] == pytest.approx([r.t for r in rows], abs=1e-9)
    assert [r.think_s or 0 for r in back] == pytest.approx([r.think_s or 0 for r in rows], abs=1e-9)
    assert positions(back) == positions(rows)
    assert sharing(back) == sharing(rows)


@given(traces(16))
def test_bailian_keeps_lengths_sharing_and_turns(rows) -> None:
    _, back, _ = there_and_back(rows, "bailian", TraceHeader(block=16))
    assert values(back, "t", "turn") == values(rows, "t", "turn")
    assert positions(back) == positions(rows)
    assert sharing(back) == sharing(rows)


@given(traces())
def test_azure_keeps_instants_and_lengths(rows) -> None:
    header, back, _ = there_and_back(rows, "azure")
    assert values(back) == values(rows)
    shift_s = (datetime.fromisoformat(header.t0) - datetime.fromisoformat(HEADER.t0)).total_seconds()
    assert [r.t + shift_s for r in back] == pytest.approx([r.t for r in rows], abs=2e-6)


@given(traces())
def test_servegen_keeps_clients(rows) -> None:
    assert values(there_and_back(rows, "servegen")[1], "t", "user") == values(rows, "t", "user")


@given(traces())
def test_burstgpt_keeps_sessions_whole_times_and_failures(rows) -> None:
    _, back, _ = there_and_back(rows, "burstgpt")
    assert values(back, "t", "session") == values(rows, "t", "session")
    assert [r.orig and r.orig.e2e_s for r in back] == [r.orig and r.orig.e2e_s for r in rows]
    assert [r.orig and r.orig.status for r in back] == ["ok" if r.output_tokens else "failed" for r in rows]


@given(traces())
def test_agent_sessions_keep_turns_on_their_own_clocks(rows) -> None:
    rows = [row for row in rows if row.session is not None]
    rows.sort(key=lambda row: row.session)
    _, back, _ = there_and_back(rows, "agents")
    names = ("session", "turn", "think_s", "cached")
    assert values(back, *names) == values(rows, *names)
    assert positions(back) == positions(rows)
    starts = {row.session: row.t for row in reversed(rows)}
    assert [r.t for r in back] == pytest.approx([r.t - starts[r.session] for r in rows], abs=1e-6)


def full_row() -> TraceRow:
    return TraceRow(
        id="a",
        t=1.0,
        prompt_tokens=100,
        output_tokens=5,
        user="u",
        session="s",
        turn=3,
        cached=64,
        max_tokens=9,
        prefix=("x", "y"),
        stream=True,
        priority=1,
        cancel_s=2.0,
        orig=TraceOriginal(status=200, ttft_s=0.5, config=3),
    )


@pytest.mark.parametrize("name", [name for name in FORMATS_WRITTEN if name != "evenflow"])
def test_every_field_that_has_no_place_is_said_once(name: str) -> None:
    _, back, notes = there_and_back([full_row()], name)
    for lost in ("max_tokens", "stream", "priority", "cancel_s", "orig.ttft_s", "orig.config"):
        assert sum(f"values of {lost} left out" in note for note in notes) == 1
    kept = {item for item in ("user", "session", "turn", "cached") if getattr(back[0], item) is not None}
    for field in {"user", "session", "turn", "cached"} - kept:
        assert sum(f"values of {field} left out" in note for note in notes) == 1
    assert any("salt_id of the header" in note for note in notes)


def test_blocks_of_another_size_are_told_anew_or_left_out_and_said() -> None:
    rows = [
        TraceRow(id="a", t=0, prompt_tokens=1000, output_tokens=1, prefix=tuple(map(str, range(16)))),
        TraceRow(
            id="b", t=1, prompt_tokens=800, output_tokens=1, prefix=(*map(str, range(9)), "p", "q", "r", "s")
        ),
        TraceRow(id="c", t=2, prompt_tokens=600, output_tokens=1, prefix=("0", "1")),
    ]
    _, back, _ = there_and_back(rows, "mooncake", TraceHeader(block=64))
    assert sharing(back) == [(0, 1), (0, 2), (3, 4)]
    _, back, notes = there_and_back(rows, "mooncake", TraceHeader(block=100))
    assert [r.prefix for r in back] == [()] * 3
    assert "3 values of prefix left out: blocks of 100 tokens cannot be told in blocks of 512 tokens" in notes


@given(st.integers(1, 900), st.integers(1, 900), st.integers(0, 60), st.sampled_from([4, 16, 64, 128]))
def test_regrouping_never_claims_more_sharing_than_there_was(first, second, common, new) -> None:
    old = 16
    prompts = [(first, "a"), (second, "b")]
    named = [
        covering(tuple(f"c{i}" for i in range(min(common, n // old))), n, old, own) for n, own in prompts
    ]
    shared = _common(named) * old
    regrouped = [regroup(names, n, old, new) for names, (n, _) in zip(named, prompts, strict=True)]
    assert all(
        names is not None and len(names) == -(-n // new)
        for names, (n, _) in zip(regrouped, prompts, strict=True)
    )
    alike = shared >= max(first, second)
    assert _common(regrouped) == (-(-first // new) if alike else shared // new)


def test_regrouping_names_no_more_blocks_than_a_prompt_has() -> None:
    assert regroup(("a", "b"), 1500, 512 * 10**15, 512) == ("a.0", "a.1", "a.2")


def _common(named: Sequence[tuple[str, ...] | None]) -> int:
    first, second = (names or () for names in named)
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b),
        min(len(first), len(second)),
    )


def test_nothing_is_overwritten_or_left_half_written(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("precious")
    with pytest.raises(TraceError, match="is there already; --force replaces it"):
        write_trace(path, "evenflow", HEADER, [full_row()], Notes())

    with pytest.raises(TraceError, match="names no file"):
        write_trace(Path("."), "evenflow", HEADER, [full_row()], Notes(), force=True)

    def broken() -> Iterable[TraceRow]:
        yield full_row()
        raise TraceError("line 7: broken")

    with pytest.raises(TraceError, match="broken"):
        write_trace(path, "evenflow", HEADER, broken(), Notes(), force=True)
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]
    write_trace(path, "evenflow", HEADER, [full_row()], Notes(), force=True)
    assert [row.id for row in open_trace(path).rows] == ["a"]


def test_an_unknown_format_and_an_unwritable_place_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no format 'sharegpt' to write; known are evenflow, mooncake"):
        write_trace(tmp_path / "x", "sharegpt", HEADER, [], Notes())
    with pytest.raises(TraceError, match="cannot be written"):
        write_trace(tmp_path / "none" / "x", "evenflow", HEADER, [], Notes())


SAMPLE_NAMES = sorted(path.name for path in SAMPLES.glob("*") if not path.name.startswith("LICENSE"))


@pytest.mark.skipif(not SAMPLE_NAMES, reason="the sample traces are not here")
@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_published_traces_survive_our_own_format(name: str, tmp_path: Path) -> None:
    published = open_trace(SAMPLES / name, AT_ZERO)
    write_trace(tmp_path / "own", "evenflow", published.header, published.rows, Notes())
    own = open_trace(tmp_path / "own")
    assert own.format == "evenflow"
    write_trace(tmp_path / "back", published.format, own.header, own.rows, Notes())
    back = open_trace(tmp_path / "back", AT_ZERO)
    assert back.format == published.format
    assert list(back.rows) == list(open_trace(SAMPLES / name, AT_ZERO).rows)
