import dataclasses

import pytest

from engine.core.records import ContentEvent, Outcome, RequestRecord
from loadtests.traffic.schedule import Schedule, ScheduledRequest
from loadtests.validity import Validity, judge

SCHEDULE = Schedule(
    name="t",
    seed=0,
    requests=tuple(
        ScheduledRequest(id=name, at_s=0.0, prompt_tokens=100, max_tokens=2, prompt_seed=0) for name in "ab"
    ),
    duration_s=1.0,
    grace_s=1.0,
    long_prompt_tokens=50,
)
GOOD = RequestRecord(
    id="a",
    scheduled_at_s=0.0,
    sent_at_s=0.001,
    planned_prompt_tokens=100,
    prompt_tokens=100,
    max_tokens=2,
    output_tokens=2,
    outcome=Outcome.COMPLETED,
    ended_at_s=2.0,
    events=(ContentEvent(0.3, 1, 50.0), ContentEvent(0.5, 1, 50.199)),
    http_status=200,
    generation=4,
)


def judged(*, lags_s: tuple[float, ...] = (0.001,), **changes: object) -> Validity:
    records = [dataclasses.replace(GOOD, **changes), dataclasses.replace(GOOD, id="b")]
    return judge(SCHEDULE, records, loop_lags_s=lags_s, slo_pause_s=0.5, expected_generation=4)


def test_a_clean_run_is_valid_and_says_what_the_client_added() -> None:
    validity = judged()
    assert validity.ok
    assert validity.dispatch_lag_p99_s == 0.001
    assert validity.client_noise_s == pytest.approx(0.001)
    assert validity.to_mapping()["ok"] is True


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sent_at_s": 0.02}, "dispatch lag"),
        ({"lags_s": (0.001, 0.2)}, "event-loop lag"),
        ({"events": (ContentEvent(0.3, 1, 50.0), ContentEvent(0.9, 1, 50.5))}, "client share"),
        ({"prompt_tokens": 103}, "prompt lengths"),
        ({"output_tokens": 1}, "not as long as planned"),
        ({"generation": 3}, "config generation ['3'], not 4"),
        ({"generation": None}, "config generation ['None'], not 4"),
        ({"id": "b"}, "no record of a"),
        ({"id": "b"}, "several records of b"),
        ({"outcome": Outcome.NEVER_SENT}, "never sent"),
    ],
)
def test_each_way_to_spoil_a_run_has_its_reason(changes: dict[str, object], reason: str) -> None:
    validity = judged(**changes)  # type: ignore[arg-type]
    assert not validity.ok
    assert any(reason in line for line in validity.reasons)
    assert validity.mend


def test_what_to_change_follows_from_the_reason() -> None:
    records = [dataclasses.replace(GOOD, sent_at_s=0.02), dataclasses.replace(GOOD, id="b")]
    assert "close other programs" in judge(SCHEDULE, records, slo_pause_s=0.5).mend
    assert "needs more than a core" in judge(SCHEDULE, records, slo_pause_s=0.5, cpu_share=0.9).mend
    assert "config" in judged(generation=3).mend
    assert judged().mend == ""


def test_a_lost_load_process_spoils_the_run() -> None:
    records = [GOOD, dataclasses.replace(GOOD, id="b")]
    assert judge(SCHEDULE, records, slo_pause_s=0.5).ok
    assert judge(SCHEDULE, records, slo_pause_s=0.5, num_lost=1).reasons == ("1 of the load processes died",)


def test_a_slow_target_allows_more_dispatch_lag() -> None:
    waits = {"events": (ContentEvent(3.0, 1), ContentEvent(3.1, 1))}
    records = [dataclasses.replace(GOOD, id=name, sent_at_s=0.05, **waits) for name in "ab"]  # type: ignore[arg-type]
    assert judge(SCHEDULE, records, slo_pause_s=0.5).ok


def test_requests_not_sent_after_an_early_stop_are_no_fault() -> None:
    records = [GOOD, dataclasses.replace(GOOD, id="b", outcome=Outcome.NEVER_SENT, sent_at_s=None, events=())]
    assert not judge(SCHEDULE, records, slo_pause_s=0.5).ok
    assert judge(SCHEDULE, records, slo_pause_s=0.5, aborted=True).ok


def test_the_size_of_a_pause_that_never_ended_owes_nothing_to_the_client() -> None:
    cut = dataclasses.replace(GOOD, outcome=Outcome.FAILED, output_tokens=1, events=GOOD.events[:1])
    records = [cut, dataclasses.replace(GOOD, id="b")]
    assert judge(SCHEDULE, records, slo_pause_s=0.5).client_noise_s is None


@pytest.mark.parametrize(("lag_s", "ok"), [(0.001, True), (0.3, False)])
def test_a_client_that_froze_itself_does_not_stop_a_run_for_the_server(lag_s: float, ok: bool) -> None:
    waiting = dataclasses.replace(
        GOOD, outcome=Outcome.UNFINISHED, output_tokens=1, events=GOOD.events[:1], ended_at_s=1.0
    )
    records = [waiting, dataclasses.replace(GOOD, id="b")]
    lags_s = [0.001] * 500 + [lag_s] + [0.001] * 9
    assert judge(SCHEDULE, records, loop_lags_s=lags_s, slo_pause_s=0.5, aborted=True).ok is ok


def test_requests_without_an_answer_do_not_excuse_a_late_client() -> None:
    refused = dataclasses.replace(
        GOOD, id="b", sent_at_s=0.2, outcome=Outcome.REFUSED, http_status=429, events=(), prompt_tokens=None
    )
    validity = judge(SCHEDULE, [dataclasses.replace(GOOD), refused], slo_pause_s=0.5)
    assert any("dispatch lag" in reason for reason in validity.reasons)
