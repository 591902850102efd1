from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.config_store import (
    ConfigStore,
    NothingKeptError,
    StaleGenerationError,
    Verdict,
    read_config_file,
    write_atomically,
)
from engine.core.config import SchedulerConfig
from engine.core.errors import ConfigError

CHUNK = "prefill_chunk_tokens"


def change(store: ConfigStore, chunk: int, keep: bool = False) -> None:
    store.replace({CHUNK: chunk}, None, "test", "", keep=keep)


def state_of(*generations: float) -> str:
    """A state file's text with a history of these."""
    rest = {"config": {}, "at": "", "who": "", "why": "", "changed": [], "verdict": "kept"}
    history = [{"generation": generation, **rest} for generation in generations]
    return json.dumps({"format": 1, "start": {}, "history": history})


def test_a_stale_generation_is_refused() -> None:
    store = ConfigStore()
    change(store, 8)
    with pytest.raises(StaleGenerationError, match="generation 2, not 1"):
        store.replace({}, 1, "test", "")
    assert store.current.generation == 2


def test_a_bad_config_leaves_no_trace() -> None:
    store = ConfigStore()
    with pytest.raises(ConfigError):
        store.replace({CHUNK: 0}, 1, "test", "")
    assert len(store.history) == 1


def test_a_rollback_restores_and_repeats_no_generation() -> None:
    store = ConfigStore(SchedulerConfig(prefill_chunk_tokens=7))
    change(store, 8)
    back = store.rollback(2, "test", "")
    assert (back.generation, back.config.prefill_chunk_tokens) == (3, 7)
    assert back.why == "rollback to generation 1"


def test_rollbacks_go_back_one_kept_config_after_the_other() -> None:
    store = ConfigStore(SchedulerConfig(prefill_chunk_tokens=7))
    for chunk in (8, 9):
        change(store, chunk, keep=True)
    back = [store.rollback(None, "test", "").config.prefill_chunk_tokens for _ in range(2)]
    assert back == [8, 7]
    with pytest.raises(NothingKeptError):
        store.rollback(None, "test", "")


def test_the_first_config_has_nothing_before_it() -> None:
    with pytest.raises(NothingKeptError):
        ConfigStore().rollback(None, "test", "")


def test_the_end_of_a_lease_goes_back_past_every_leased_config() -> None:
    store = ConfigStore()
    change(store, 8)
    assert store.end_lease() is None
    for chunk in range(100, 700):
        store.replace({CHUNK: chunk}, None, "test", "", leased=True)
    back = store.end_lease()
    assert back is not None
    assert back.generation == 603
    assert (back.config.prefill_chunk_tokens, back.verdict) == (8, Verdict.PENDING)
    assert store.rollback(None, "test", "").config == SchedulerConfig()
    assert store.end_lease() is None


def test_what_is_kept_is_no_longer_leased(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    store = ConfigStore(path=path)
    store.replace({CHUNK: 8}, None, "test", "", leased=True)
    store.replace({CHUNK: 9}, None, "test", "", leased=True)
    store.judge(2, Verdict.KEPT)
    store.save()
    assert ConfigStore(path=path).current.config.prefill_chunk_tokens == 8
    back = store.end_lease()
    assert back is not None
    assert (back.config.prefill_chunk_tokens, back.verdict) == (8, Verdict.KEPT)


def test_only_what_was_kept_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    store = ConfigStore(path=path)
    change(store, 8, keep=True)
    change(store, 9)
    store.save()
    again = ConfigStore(path=path)
    assert again.current.config.prefill_chunk_tokens == 8
    assert again.current.generation == 4
    assert [c.verdict for c in again.history] == [Verdict.KEPT, Verdict.KEPT, Verdict.PENDING, Verdict.KEPT]


def test_a_start_config_that_was_edited_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    start = SchedulerConfig(prefill_chunk_tokens=4)
    store = ConfigStore(start, path)
    change(store, 8, keep=True)
    store.save()
    assert ConfigStore(start, path).current.config.prefill_chunk_tokens == 8
    edited = ConfigStore(SchedulerConfig(prefill_chunk_tokens=5), path)
    assert edited.current.config.prefill_chunk_tokens == 5
    assert edited.current.generation == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 30_000,
        '{"format": 9}',
        '{"format": 1, "start": {"x": 1}, "history": []}',
        '{"format": 1, "start": [], "history": []}',
        state_of(1, 1),
        state_of(-1),
        state_of(float("inf")),
    ],
)
def test_a_corrupt_state_is_set_aside_with_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    lines: list[str] = []
    store = ConfigStore(path=path, warn=lines.append)
    assert store.current.config == SchedulerConfig()
    assert len(lines) == 1
    assert (tmp_path / "config.corrupt.json").read_text() == text


def test_the_history_is_bounded_and_keeps_what_a_rollback_needs() -> None:
    store = ConfigStore(SchedulerConfig(prefill_chunk_tokens=3))
    for chunk in range(1, 1200):
        change(store, chunk)
    assert len(store.history) == 500
    assert store.rollback(None, "test", "").config.prefill_chunk_tokens == 3


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    write_atomically(path, "one")
    write_atomically(path, "two")
    assert path.read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "taken", "text")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("text", ["{", "[]", "[" * 30_000, json.dumps({CHUNK: "x"}), json.dumps({"nope": 1})])
def test_a_bad_config_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "start.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"start\.json"):
        read_config_file(path)
