import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from engine.core.records import Outcome
from loadtests.play.sharding import LOST, Crew, prompt_seed, split


def request(name: str, **fields: Any) -> dict[str, Any]:
    return {"id": name, "kind": "k", "at_s": 1.0, **fields}


def job(*requests: Mapping[str, Any]) -> dict[str, Any]:
    return {"url": "http://h", "duration_s": 5.0, "requests": list(requests)}


def record(name: str) -> dict[str, Any]:
    return {"id": name, "outcome": "completed"}


def result(*names: str, **fields: Any) -> dict[str, Any]:
    base = {"loop_lags_s": [0.001], "cpu_share": 0.1, "aborted_at_s": None, "elapsed_s": 4.0}
    return {**base, "records": [record(name) for name in names], **fields}


JOB = job(*[request(name) for name in "abcd"])


@pytest.mark.parametrize("num_parts", [1, 2, 3, 7])
def test_every_request_is_dealt_to_exactly_one(num_parts: int) -> None:
    parts = split(JOB, num_parts)
    assert len(parts) == num_parts
    assert sorted(r["id"] for part in parts for r in part["requests"]) == list("abcd")
    assert max(len(part["requests"]) for part in parts) <= -(-4 // num_parts)
    assert all(part["url"] == "http://h" for part in parts)


def test_the_turns_of_a_session_stay_together() -> None:
    turns = [request("s1"), request("x"), request("s2", after="s1"), request("y"), request("s3", after="s2")]
    parts = [{r["id"] for r in part["requests"]} for part in split(job(*turns), 2)]
    assert any({"s1", "s2", "s3"} <= part for part in parts)


def test_a_turn_whose_beginning_is_not_in_the_job_is_dealt_like_any_other() -> None:
    parts = split(job(request("a"), request("b", after="gone")), 2)
    assert [len(part["requests"]) for part in parts] == [1, 1]


def test_the_merged_result_is_one_processs_in_the_jobs_order() -> None:
    crew = Crew(JOB, ["w0", "w1"])
    crew.hand_in("w1", result("b", "d", elapsed_s=5.0, loop_lags_s=[0.002], cpu_share=0.3))
    assert not crew.is_done
    crew.hand_in("w0", result("a", "c"))
    assert crew.is_done
    merged = crew.result(6.0)
    assert [r["id"] for r in merged["records"]] == list("abcd")
    assert merged["elapsed_s"] == 5.0
    assert merged["cpu_share"] == 0.3
    assert (merged["aborted_at_s"], merged["num_lost"]) == (None, 0)
    alone = Crew(JOB, ["w0"])
    alone.hand_in("w0", result(*"abcd"))
    assert set(alone.result(6.0)) == set(merged)


def test_what_a_lost_process_leaves_is_kept_failed_or_never_sent() -> None:
    crew = Crew(job(*[request(name) for name in "abcdef"]), ["w0", "w1"])
    progress = {"num_sent": 2, "worst_pause_s": 0.2, "running": {"c": 1.5}, "records": [record("a")]}
    crew.hear("w0", progress)
    crew.hand_in("w1", result("b", "d", "f"))
    assert crew.lose("w0")
    assert crew.is_done
    records = {r["id"]: r for r in crew.result(9.0)["records"]}
    assert records["a"] == record("a")
    assert (records["c"]["outcome"], records["c"]["sent_at_s"]) == (Outcome.FAILED, 1.5)
    assert (records["c"]["error"], records["c"]["ended_at_s"]) == (LOST, 9.0)
    assert (records["e"]["outcome"], records["e"]["sent_at_s"]) == (Outcome.NEVER_SENT, None)
    assert crew.result(9.0)["num_lost"] == 1


def test_a_process_that_goes_after_handing_in_is_not_lost() -> None:
    crew = Crew(JOB, ["w0"])
    crew.hand_in("w0", result(*"abcd"))
    assert not crew.lose("w0")
    assert crew.result(5.0)["num_lost"] == 0


def test_the_lags_of_whoever_stopped_the_run_come_last() -> None:
    crew = Crew(JOB, ["w0", "w1"])
    crew.hand_in("w0", result("a", "c", aborted_at_s=2.0, loop_lags_s=[0.5]))
    assert crew.has_aborted
    crew.hand_in("w1", result("b", "d", loop_lags_s=[0.001]))
    merged = crew.result(3.0)
    assert (merged["aborted_at_s"], merged["loop_lags_s"]) == (2.0, [0.001, 0.5])


def test_progress_is_everybodys() -> None:
    crew = Crew(JOB, ["w0", "w1"])
    crew.hear("w0", {"num_sent": 2, "worst_pause_s": 0.2, "running": {}, "records": [record("a")]})
    crew.hear("w1", {"num_sent": 1, "worst_pause_s": 0.3, "running": {}, "records": []})
    assert crew.progress() == {"sent": 3, "ended": 1, "worst_pause_s": 0.3}


def test_nobody_starts_before_all_that_are_left_are_ready() -> None:
    crew = Crew(JOB, ["w0", "w1"])
    crew.ready("w0")
    assert not crew.is_ready
    crew.lose("w1")
    assert crew.is_ready
    assert crew.workers == ["w0"]


def test_no_two_questions_have_one_seed() -> None:
    places = itertools.product(range(4), range(4), range(4))
    assert len({prompt_seed(*place) for place in places}) == 64
