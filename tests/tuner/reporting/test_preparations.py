from __future__ import annotations

import pytest

from loadtests.traffic.schedule import Schedule, ScheduledRequest
from tests.tuner.fakes import Silence
from tuner.errors import TunerError
from tuner.reporting.preparations import announce_traffic


def talk(prompt_tokens: int, max_tokens: int) -> Schedule:
    request = ScheduledRequest(
        id="a", at_s=0.0, prompt_tokens=prompt_tokens, max_tokens=max_tokens, prompt_seed=1
    )
    return Schedule(
        name="talk", seed=1, requests=(request,), duration_s=1.0, grace_s=1.0, long_prompt_tokens=100
    )


def test_traffic_in_which_nobody_is_long_has_nothing_to_tune() -> None:
    with pytest.raises(TunerError, match=r"no request of talk is long \(100 new tokens or more\)"):
        announce_traffic(talk(99, 8), Silence())


def test_traffic_in_which_nobody_streams_has_nothing_to_tune() -> None:
    with pytest.raises(TunerError, match="no answer of talk is longer than one token"):
        announce_traffic(talk(100, 1), Silence())
    announce_traffic(talk(100, 2), Silence())
