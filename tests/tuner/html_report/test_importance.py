from __future__ import annotations

import random

import pytest

from engine.core.config import SchedulerConfig
from tuner.html_report.importance import LEAST_CONFIGS, Sample, knob_importance

RNG = random.Random(1)


def fixed(pause: float | None = None) -> Sample:
    """The pause follows from the chunk, the TTFT from the queue's length, neither from anything else."""
    chunk, running = RNG.randint(16, 1024), RNG.choice([4, 8, 16])
    config = SchedulerConfig().to_mapping() | {"prefill_chunk_tokens": chunk, "max_running_requests": running}
    return Sample(config, chunk / 1000 if pause is None else pause, 5.0 + running)


def paced() -> Sample:
    target = RNG.uniform(0.1, 0.5)
    config = SchedulerConfig().to_mapping() | {"prefill_policy": "paced", "pause_target_s": target}
    return Sample(config, target, 9.0)


def test_the_knob_that_decides_weighs_most() -> None:
    found = knob_importance([fixed() for _ in range(200)])
    assert found is not None
    assert max(found.worst_pause, key=lambda name: found.worst_pause[name]) == "prefill_chunk_tokens"
    assert max(found.long_ttft, key=lambda name: found.long_ttft[name]) == "max_running_requests"


def test_shares_add_up_to_one() -> None:
    found = knob_importance([fixed() for _ in range(100)])
    assert found is not None
    assert sum(found.worst_pause.values()) == pytest.approx(1.0)


def test_knobs_that_never_changed_are_not_named() -> None:
    found = knob_importance([fixed() for _ in range(100)])
    assert found is not None
    assert set(found.worst_pause) == {"prefill_chunk_tokens", "max_running_requests"}


def test_a_knob_of_one_policy_is_judged_where_it_acts() -> None:
    found = knob_importance([*(fixed() for _ in range(100)), *(paced() for _ in range(100))])
    assert found is not None
    assert {"prefill_policy", "prefill_chunk_tokens", "pause_target_s"} <= set(found.worst_pause)


def test_a_few_configs_say_nothing() -> None:
    assert knob_importance([fixed() for _ in range(LEAST_CONFIGS - 1)]) is None


def test_runs_without_a_ttft_count_for_the_pause_alone() -> None:
    stopped = [Sample(sample.config, 2.0, None) for sample in (fixed() for _ in range(50))]
    found = knob_importance([*(fixed() for _ in range(60)), *stopped])
    assert found is not None
    assert found.num_configs == (60, 110)
