from __future__ import annotations

import pytest

from loadtests.traffic.schedule import Schedule, ScheduledRequest
from tests.tuner.fakes import Silence
from tuner.errors import TunerError
from tuner.reporting.preparations import announce_traffic


def test_traffic_in_which_nobody_is_long_has_nothing_to_tune() -> None:
    request = ScheduledRequest(id="short", at_s=0.0, prompt_tokens=99, max_tokens=8, prompt_seed=1)
    schedule = Schedule(
        name="talk", seed=1, requests=(request,), duration_s=1.0, grace_s=1.0, long_prompt_tokens=100
    )
    with pytest.raises(TunerError, match=r"no request of talk is long \(100 new tokens or more\)"):
        announce_traffic(schedule, Silence())
