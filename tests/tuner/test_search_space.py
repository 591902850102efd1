from __future__ import annotations

from pathlib import Path

import pytest

from engine.core.config import PrefillPolicy, SchedulerConfig
from tuner.paths import locate_database
from tuner.search.asker import Asker
from tuner.search.objective import Score
from tuner.search_space import SearchSpace, describe, fixed_chunks, num_changes, scaled, unchunked
from tuner.store.optuna_storage import open_optuna

SPACE = SearchSpace(SchedulerConfig(), 0.5, 900, 3)


def make_asker(directory: Path) -> Asker:
    storage = open_optuna(locate_database(str(directory / "evenflow.db")))
    return Asker(storage, "s", SPACE, seed=1)


def test_an_enqueued_config_is_asked_for_next(tmp_path: Path) -> None:
    asker = make_asker(tmp_path)
    wanted = fixed_chunks(SchedulerConfig(), 77)
    asker.enqueue(wanted)
    assert asker.ask()[1] == wanted


def test_every_config_asked_for_is_in_the_space(tmp_path: Path) -> None:
    asker = make_asker(tmp_path)
    for _ in range(40):
        number, config = asker.ask()
        assert SPACE.contains(config)
        assert config.prefill_chunk_tokens <= 900 or config.prefill_policy is PrefillPolicy.PACED
        assert config.pause_target_s <= 0.5
        assert config.max_running_requests > 3
        asker.tell(number, Score(1.0, -0.1, 0.0, 0.0, 0.0))


def test_a_resumed_search_does_not_repeat_its_picks(tmp_path: Path) -> None:
    first = make_asker(tmp_path)
    number, config = first.ask()
    first.tell(number, Score(1.0, -0.1, 0.0, 0.0, 0.0))
    first.ask()
    assert make_asker(tmp_path).ask()[1] != config


def test_a_known_result_is_learnt_once(tmp_path: Path) -> None:
    asker = make_asker(tmp_path)
    config = fixed_chunks(SchedulerConfig(), 128)
    for _ in range(2):
        asker.learn(config, Score(1.0, -0.1, 0.0, 0.0, 0.0))
    number, _ = asker.ask()
    assert number == 1


def test_a_config_outside_the_space_is_not_learnt(tmp_path: Path) -> None:
    asker = make_asker(tmp_path)
    asker.learn(unchunked(SchedulerConfig()), Score(1.0, 9.0, 0.0, 0.0, 0.0))
    asker.learn(fixed_chunks(SchedulerConfig(), 4096), Score(1.0, 9.0, 0.0, 0.0, 0.0))
    assert asker.ask()[0] == 0


def test_a_scaled_config_does_so_many_times_the_work_between_decode_steps() -> None:
    assert scaled(fixed_chunks(SchedulerConfig(), 100), 0.7).prefill_chunk_tokens == 70
    paced = SchedulerConfig(prefill_policy=PrefillPolicy.PACED, pause_target_s=0.5)
    assert scaled(paced, 0.7).pause_target_s == pytest.approx(0.35)


def test_what_a_person_is_told() -> None:
    assert describe(unchunked(SchedulerConfig())) == "chunking off"
    assert describe(fixed_chunks(SchedulerConfig(), 128)) == "128 tokens"
    config = SchedulerConfig(prefill_policy=PrefillPolicy.PACED, pause_target_s=0.4, solo_chunk_tokens=0)
    assert describe(config) == "paced to 0.4 s, solo whole"
    assert num_changes(config, SchedulerConfig()) == 1
