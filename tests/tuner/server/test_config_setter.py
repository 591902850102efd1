from __future__ import annotations

import pytest

from engine.core.config import SchedulerConfig
from tests.tuner.fake_engine import FakeEngine
from tuner.errors import StaleConfigError
from tuner.search_space import describe
from tuner.server.config_setter import ConfigSetter, restoring

CONFIG = SchedulerConfig(prefill_chunk_tokens=128)


def test_the_original_config_is_put_back_after_an_error() -> None:
    engine = FakeEngine()
    original = engine.config
    setter = ConfigSetter(engine.client())
    setter.put(CONFIG, "trial")
    with pytest.raises(ZeroDivisionError), restoring(setter, print):
        raise ZeroDivisionError
    assert engine.config == original
    assert engine.kept[-1] == engine.generation


def test_what_a_killed_run_left_behind_is_not_taken_for_the_servers_own_config() -> None:
    engine = FakeEngine()
    original = engine.config
    killed = ConfigSetter(engine.client())
    killed.put(CONFIG, "trial 1")
    killed.put(original, "trial 2")
    killed.put(CONFIG, "trial 3")
    setter = ConfigSetter(engine.client())
    assert setter.original.config == original
    with restoring(setter, print):
        pass
    assert engine.config == original
    assert engine.kept[-1] == engine.generation


def test_a_change_of_ours_that_was_kept_is_the_servers_own_config() -> None:
    engine = FakeEngine()
    engine.client().put_config(CONFIG, 1, "study", keep=True)
    assert ConfigSetter(engine.client()).original.config == CONFIG


def test_somebody_elses_config_is_left_alone_at_the_end() -> None:
    engine = FakeEngine()
    setter = ConfigSetter(engine.client())
    said: list[str] = []
    with restoring(setter, said.append):
        setter.put(CONFIG, "trial")
        engine.meddle()
    assert engine.config.max_running_requests == 99
    assert len(said) == 1
    assert "it was left as it is: " in said[0]
    assert "99 running" in said[0]
    assert said[0].endswith(f"Before the trials it was {describe(setter.original.config)}")


def test_a_trial_notices_somebody_elses_change() -> None:
    engine = FakeEngine()
    setter = ConfigSetter(engine.client())
    engine.meddle()
    with pytest.raises(StaleConfigError):
        setter.put(CONFIG, "trial")


def test_a_trial_is_on_loan_and_the_servers_own_config_is_not() -> None:
    engine = FakeEngine()
    setter = ConfigSetter(engine.client())
    setter.put(CONFIG, "trial")
    setter.put(setter.original.config, "trial")
    setter.put(CONFIG, "trial")
    assert engine.leased == [2, 4]


def test_tuning_may_begin_again_after_the_config_was_put_back() -> None:
    engine = FakeEngine()
    setter = ConfigSetter(engine.client())
    setter.put(CONFIG, "trial")
    assert setter.restore()
    assert setter.put(CONFIG, "trial") == engine.generation


def test_what_is_on_loan_is_renewed() -> None:
    engine = FakeEngine()
    setter = ConfigSetter(engine.client())
    setter.put(CONFIG, "trial")
    setter.renew()
    assert engine.renewed == [2]


def test_a_loan_that_ran_out_is_taken_again() -> None:
    engine = FakeEngine()
    setter = ConfigSetter(engine.client())
    setter.put(CONFIG, "trial")
    engine.end_lease()
    assert setter.put(CONFIG, "the same trial") == 4
    engine.end_lease()
    assert setter.put(SchedulerConfig(prefill_chunk_tokens=64), "another") == 6
    assert setter.restore()
    assert engine.config == setter.original.config
