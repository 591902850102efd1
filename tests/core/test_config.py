from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.config import SchedulerConfig, config_schema, parse_config
from engine.core.errors import ConfigError


def test_a_config_survives_the_way_through_json_values() -> None:
    config = parse_config({"prefill_policy": "paced", "pause_target_s": 1, "kv_budget_tokens": 5000})
    assert parse_config(config.to_mapping()) == config
    assert isinstance(config.pause_target_s, float)


def test_a_partial_change_keeps_the_other_knobs() -> None:
    base = parse_config({"prefill_chunk_tokens": 64, "prefill_order": "aged"})
    assert parse_config({"prefill_chunk_tokens": 32}, base).prefill_order == "aged"


@pytest.mark.parametrize(
    "values",
    [
        {"prefill_chunk_tokens": 0},
        {"prefill_chunk_tokens": True},
        {"prefill_chunk_tokens": 1.5},
        {"prefill_chunk_tokens": None},
        {"prefill_policy": "fast"},
        {"prefill_policy": 3},
        {"pause_target_s": float("nan")},
        {"pause_target_s": "0.5s"},
        {"kv_budget_tokens": 0},
        {"chunk": 3},
    ],
)
def test_a_bad_knob_is_named_in_one_line(values: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(values)
    assert next(iter(values)) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"prefill_chunk_tokens": 0, "max_running_requests": -1, "nonsense": 1})
    assert len(caught.value.problems) == 3


@given(st.dictionaries(st.sampled_from(list(config_schema()["properties"])), st.integers(-5, 5000)))
def test_the_schema_and_the_parser_agree_on_ranges(values: dict[str, int]) -> None:
    properties = config_schema()["properties"]
    fits = all(
        "enum" not in properties[name] and properties[name]["minimum"] <= value <= properties[name]["maximum"]
        for name, value in values.items()
    )
    if fits:
        assert parse_config(values).to_mapping() == SchedulerConfig().to_mapping() | values
    else:
        with pytest.raises(ConfigError):
            parse_config(values)
