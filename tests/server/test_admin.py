from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.config_store import ConfigStore
from engine.core.config import SchedulerConfig
from engine.server.app import AppOptions
from tests.engine.fakes import FakeBackend
from tests.server.live import Live, RawClient, chat


def put(live: Live, config: dict[str, Any], tag: str = '"1"', **headers: str) -> httpx.Response:
    return live.http.put("/admin/config", json=config, headers={"If-Match": tag} | headers)


def test_the_config_comes_with_generation_tag_and_schema(live: Live) -> None:
    response = live.http.get("/admin/config")
    body = response.json()
    assert response.headers["etag"] == '"1"'
    assert body["generation"] == 1
    assert body["config"] == SchedulerConfig().to_mapping()
    assert set(body["schema"]["properties"]) == set(body["config"])


def test_a_put_replaces_the_whole_config(live: Live) -> None:
    live.http.patch("/admin/config", json={"max_running_requests": 3}, headers={"If-Match": '"1"'})
    response = put(live, {"prefill_chunk_tokens": 64}, '"2"')
    assert response.status_code == 200
    assert response.headers["etag"] == '"3"'
    assert response.json()["generation"] == 3
    assert response.json()["config"] == SchedulerConfig(prefill_chunk_tokens=64).to_mapping()
    answer = live.http.post("/v1/chat/completions", json=chat())
    assert answer.headers["x-config-generation"] == "3"


def test_a_patch_changes_the_named_knobs_only(live: Live) -> None:
    put(live, {"prefill_chunk_tokens": 64})
    response = live.http.patch("/admin/config", json={"max_running_requests": 3}, headers={"If-Match": '"2"'})
    expected = SchedulerConfig(prefill_chunk_tokens=64, max_running_requests=3)
    assert response.json()["config"] == expected.to_mapping()


def test_what_get_gives_may_be_put_back(live: Live) -> None:
    body = live.http.get("/admin/config").json()
    assert put(live, body).status_code == 200


def test_what_is_in_force_already_makes_no_generation(live: Live) -> None:
    put(live, {"prefill_chunk_tokens": 64})
    in_force = live.http.get("/admin/config").json()["config"]
    match = {"If-Match": '"2"'}
    for answer in (
        put(live, in_force, '"2"'),
        live.http.patch("/admin/config", json={}, headers=match),
        live.http.patch("/admin/config", json={"prefill_chunk_tokens": 64}, headers=match),
        put(live, in_force, '"2"', **{"x-evenflow-keep": "1"}),
    ):
        assert (answer.status_code, answer.json()["generation"], answer.headers["etag"]) == (200, 2, '"2"')
    history = live.http.get("/admin/config/history").json()["history"]
    assert [entry["verdict"] for entry in history] == ["kept", "kept"]
    assert put(live, in_force, '"1"').status_code == 412


def test_a_loan_of_what_is_in_force_begins_and_ends_with_a_generation(live: Live) -> None:
    loan = {"x-evenflow-lease-s": "60"}
    in_force = live.http.get("/admin/config").json()["config"]
    assert put(live, in_force, **loan).json()["generation"] == 2
    assert put(live, in_force, '"2"', **loan).json()["generation"] == 2
    nothing = live.http.patch("/admin/config", json={}, headers={"If-Match": '"2"'})
    assert nothing.json()["generation"] == 2
    assert renew(live, 2, 60).status_code == 200
    assert put(live, in_force, '"2"').json()["generation"] == 3
    assert renew(live, 3, 60).status_code == 409


def test_a_change_needs_the_generation_it_replaces(live: Live) -> None:
    config = SchedulerConfig().to_mapping()
    assert live.http.put("/admin/config", json=config).status_code == 428
    assert put(live, config, '"7"').status_code == 412
    assert put(live, config, '"7"').headers["etag"] == '"1"'
    assert put(live, config, "nonsense").status_code == 400
    assert put(live, config, "9" * 5000).status_code == 400
    assert live.http.get("/admin/config").json()["generation"] == 1
    assert put(live, config, "*").status_code == 200


@pytest.mark.parametrize("body", [b"", b"{}", b'{"config": {}, "who": "ada"}'])
def test_an_empty_config_resets_nothing(live: Live, body: bytes) -> None:
    put(live, {"prefill_chunk_tokens": 64})
    response = live.http.put("/admin/config", content=body, headers={"If-Match": '"2"'})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "empty_config")
    assert "whole config" in response.json()["error"]["message"]
    assert live.http.get("/admin/config").json()["config"]["prefill_chunk_tokens"] == 64


def renew(live: Live, generation: int, lease_s: Any) -> httpx.Response:
    return live.http.post("/admin/config/lease", json={"generation": generation, "lease_s": lease_s})


def test_a_config_on_loan_is_given_up_when_nobody_renews_it(live: Live) -> None:
    put(live, {"prefill_chunk_tokens": 64})
    put(live, {"prefill_chunk_tokens": 32}, '"2"', **{"x-evenflow-lease-s": "60"})
    put(live, {"config": {"prefill_chunk_tokens": 16}, "lease_s": 60}, '"3"')
    assert renew(live, 4, 0.01).status_code == 200
    live.until(lambda: live.service.generation == 5)
    assert live.http.get("/admin/config").json()["config"]["prefill_chunk_tokens"] == 64
    last = live.http.get("/admin/config/history").json()["history"][-1]
    assert (last["who"], last["why"]) == ("engine", "the lease of generation 4 ended")
    answer = live.http.post("/v1/chat/completions", json=chat())
    assert answer.headers["x-config-generation"] == "5"
    assert renew(live, 4, 60).status_code == 409


def test_only_the_config_on_loan_can_be_renewed(live: Live) -> None:
    assert renew(live, 1, 60).status_code == 409
    put(live, {"prefill_chunk_tokens": 64}, **{"x-evenflow-lease-s": "60"})
    refused = renew(live, 1, 60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_leased")
    verdict = {"generation": 2, "verdict": "kept"}
    assert live.http.post("/admin/config/verdict", json=verdict).json()["leased"] is False
    assert renew(live, 2, 60).status_code == 409


@pytest.mark.parametrize("lease", ["0", "-1", "nan", "inf", "1e9", "soon"])
def test_a_lease_that_is_no_time_is_refused(live: Live, lease: str) -> None:
    response = put(live, {"prefill_chunk_tokens": 64}, **{"x-evenflow-lease-s": lease})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_value")
    both = {"x-evenflow-lease-s": "5", "x-evenflow-keep": "1"}
    assert put(live, {"prefill_chunk_tokens": 64}, **both).status_code == 400
    assert live.service.generation == 1


def test_a_bad_config_changes_nothing_and_names_every_knob_at_fault(live: Live) -> None:
    response = put(live, {"prefill_chunk_tokens": 0, "max_running_requests": 5, "speed": 1})
    assert response.status_code == 422
    problems = response.json()["error"]["problems"]
    assert len(problems) == 2
    assert any("prefill_chunk_tokens" in problem for problem in problems)
    assert any("speed" in problem for problem in problems)
    assert live.http.get("/admin/config").json()["config"] == SchedulerConfig().to_mapping()
    assert put(live, {"max_running_requests": 5}, '"1"').status_code == 200


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"config": None}, "config must be an object of knobs, not null"),
        ({"max_running_requests": 3, "who": "ada"}, "who is no knob; it stands beside them"),
        ({"config": {}, "keeep": True}, '"keeep" has no meaning beside config'),
        ({"config": {}, "keep": "yes"}, 'keep must be true or false (x-evenflow-keep: 1 or 0), not "yes"'),
        ({"config": {}, "keep": 1}, "not 1"),
        ({"config": {}, "who": 5}, "who must be text, not 5"),
        ({"config": {}, "lease_s": None}, "lease_s must be seconds above 0 and up to 86400, not null"),
    ],
)
def test_what_is_said_beside_a_config_is_understood_or_refused(
    live: Live, body: dict[str, Any], said: str
) -> None:
    answer = live.http.patch("/admin/config", json=body, headers={"If-Match": "*"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")
    assert said in answer.json()["error"]["message"]


def test_a_header_that_does_not_say_whether_to_keep_is_refused(live: Live) -> None:
    answer = put(live, {"prefill_chunk_tokens": 64}, **{"x-evenflow-keep": "true"})
    assert (answer.status_code, live.service.generation) == (400, 1)
    assert put(live, {"prefill_chunk_tokens": 64}, **{"x-evenflow-keep": "0"}).status_code == 200
    assert live.http.get("/admin/config/history").json()["history"][-1]["verdict"] == "pending"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (b'{"max_running_requests": null}', "a whole number from 1 to 4096, not null"),
        (b'{"max_running_requests": "' + b"9" * 5000 + b'"}', "\u2026"),
        (b'{"max_running_requests": 1' + b"0" * 4000 + b"}", "\u2026"),
        (b'{"max_running_requests": 1' + b"0" * 5000 + b"}", "a number has too many digits"),
        (b'{"' + b"x" * 5000 + b'": 1}', "the knobs are prefill_policy"),
        (b'{"pause_target_s": NaN}', "from 0.001 to 60.0, not NaN"),
    ],
)
def test_a_complaint_shows_what_was_sent_and_never_at_length(live: Live, config: bytes, said: str) -> None:
    answer = live.http.put("/admin/config", content=config, headers={"If-Match": "*"})
    message = answer.json()["error"]["message"]
    assert answer.status_code in (400, 422)
    assert said in message
    assert len(message) < 500


@pytest.mark.parametrize("body", [b"{", b"[1]", b'"x"', b"[" * 30_000, b'{"who": "\\ud800"}', b"\xff"])
def test_a_config_that_is_no_object_is_refused(live: Live, body: bytes) -> None:
    response = live.http.put("/admin/config", content=body, headers={"If-Match": '"1"'})
    assert response.status_code == 400
    rollback = live.http.post("/admin/config/rollback", content=body)
    assert rollback.status_code == 400
    assert live.http.get("/admin/config/history").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"generation": Infinity, "verdict": "kept"}',
        b'{"generation": 1e400, "verdict": "kept"}',
        b'{"generation": true, "verdict": "kept"}',
        b'{"generation": 1, "verdict": []}',
        b'{"generation": 1, "verdict": "fine"}',
    ],
)
def test_a_verdict_that_is_none_is_refused(live: Live, body: bytes) -> None:
    response = live.http.post("/admin/config/verdict", content=body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_value")


def test_the_history_says_who_when_and_why(live: Live) -> None:
    headers = {"x-evenflow-who": "ada", "x-evenflow-why": "trial 3"}
    put(live, {"prefill_chunk_tokens": 64}, **headers)
    live.http.patch(
        "/admin/config", json={"config": {"pause_target_s": 1}, "who": "bob"}, headers={"If-Match": '"2"'}
    )
    query = {"who": "cy", "why": "by query"}
    live.http.put("/admin/config", json={"pause_target_s": 2}, params=query, headers={"If-Match": '"3"'})
    start, first, second, third = live.http.get("/admin/config/history").json()["history"]
    assert (start["who"], start["verdict"]) == ("engine", "kept")
    assert (first["who"], first["why"], first["verdict"]) == ("ada", "trial 3", "pending")
    assert first["changed"] == ["prefill_chunk_tokens"]
    assert (second["who"], second["changed"]) == ("bob", ["pause_target_s"])
    assert (third["who"], third["why"]) == ("cy", "by query")
    assert first["at"].endswith("+00:00")


def test_a_rollback_goes_to_the_config_kept_last(live: Live) -> None:
    put(live, {"prefill_chunk_tokens": 64})
    verdict = {"generation": 2, "verdict": "kept"}
    assert live.http.post("/admin/config/verdict", json=verdict).json()["verdict"] == "kept"
    put(live, {"prefill_chunk_tokens": 32}, '"2"')
    put(live, {"prefill_chunk_tokens": 16}, '"3"')
    response = live.http.post("/admin/config/rollback", headers={"x-evenflow-who": "governor"})
    assert response.status_code == 200
    assert response.json()["generation"] == 5
    assert response.json()["config"]["prefill_chunk_tokens"] == 64
    history = live.http.get("/admin/config/history").json()["history"]
    assert [entry["verdict"] for entry in history] == ["kept", "kept", "pending", "rolled_back", "kept"]


def test_a_rollback_may_insist_on_a_generation(live: Live) -> None:
    put(live, {"prefill_chunk_tokens": 64})
    stale = live.http.post("/admin/config/rollback", headers={"If-Match": '"1"'})
    assert stale.status_code == 412
    assert live.http.post("/admin/config/rollback", headers={"If-Match": '"2"'}).status_code == 200


def test_there_may_be_nothing_to_go_back_to(live: Live) -> None:
    assert live.http.post("/admin/config/rollback").status_code == 409
    assert (
        live.http.post("/admin/config/verdict", json={"generation": 9, "verdict": "kept"}).status_code == 404
    )
    assert live.http.post("/admin/config/verdict", json={"generation": 1, "verdict": "?"}).status_code == 400


def test_a_kept_config_survives_a_restart(tmp_path: Path) -> None:
    state = tmp_path / "state" / "config.json"
    with Live(FakeBackend(), state=state) as live:
        put(live, {"prefill_chunk_tokens": 64}, **{"x-evenflow-keep": "1"})
        put(live, {"prefill_chunk_tokens": 1}, '"2"')
    store = ConfigStore(None, state)
    assert store.current.config.prefill_chunk_tokens == 64
    assert store.current.generation == 4


def test_a_state_that_cannot_be_saved_does_not_undo_the_change(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with Live(FakeBackend(), state=tmp_path / "file" / "config.json") as live:
        assert put(live, {"prefill_chunk_tokens": 64}).status_code == 200
        assert live.http.get("/admin/config").json()["generation"] == 2


def test_stats_count_what_ended_and_what_is_inside(live: Live, backend: FakeBackend) -> None:
    for _ in range(3):
        live.http.post("/v1/chat/completions", json=chat())
    live.http.post("/v1/chat/completions", json=chat(max_tokens=5000))
    put(live, {"prefill_chunk_tokens": 64})
    backend.gate.hold()
    client = RawClient(live, chat(stream=True))
    live.until(lambda: live.service.engine.occupancy.num_running)
    stats = live.http.get("/admin/stats", params={"window_s": 600, "slo_pause_s": 1000}).json()
    client.leave()
    assert (stats["running"], stats["waiting"], stats["generation"]) == (1, 0, 2)
    assert stats["kv_tokens"] == 12
    assert stats["outcomes"] == {"completed": 3, "refused": 1}
    assert stats["refusals"] == {"context_length_exceeded": 1}
    assert stats["ttft_s"]["n"] == stats["worst_pause_s"]["n"] == 3
    assert stats["ttft_s"]["p95"] is None  # three samples support no percentile
    assert stats["top_pauses"][0]["pause_s"] == stats["worst_pause_s"]["max"]
    assert stats["top_pauses"][0]["cause"]["kind"] in ("decode", "host", "prefill")
    assert stats["by_generation"]["1"]["whole_streams"] == 3
    assert stats["by_generation"]["1"]["whole_streams_over_slo"] == 0
    assert live.http.get("/admin/stats", params={"window_s": 1e-9}).json()["ttft_s"]["n"] == 0
    assert live.http.get("/admin/stats", params={"window_s": "x"}).json()["error"]["param"] == "window_s"


def test_steps_and_requests_are_numbered_without_gaps(live: Live) -> None:
    live.http.post("/v1/chat/completions", json=chat())
    response = live.http.get("/admin/steps")
    rows = [json.loads(line) for line in response.text.splitlines()]
    assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
    assert response.headers["x-next-after"] == str(len(rows))
    assert rows[0]["work"]["prefill_tokens"] == 4
    assert live.http.get("/admin/steps", params={"after": len(rows)}).text == ""
    tail = live.http.get("/admin/steps", params={"after": len(rows) - 2}).text.splitlines()
    assert [json.loads(line)["seq"] for line in tail] == [len(rows) - 1, len(rows)]
    requests = live.http.get("/admin/requests").text.splitlines()
    assert [json.loads(line)["outcome"] for line in requests] == ["completed"]


def test_metrics_carry_the_fields_names(live: Live) -> None:
    live.http.post("/v1/chat/completions", json=chat())
    text = live.http.get("/metrics").text
    for line in (
        'evenflow_requests_total{outcome="completed"} 1.0',
        "evenflow_prompt_tokens_total 4.0",
        "evenflow_generation_tokens_total 8.0",
        "evenflow_num_requests_running 0.0",
        "evenflow_num_requests_waiting 0.0",
        "evenflow_config_generation 1.0",
        "evenflow_time_to_first_token_seconds_count 1.0",
        "evenflow_streaming_pause_seconds_count 1.0",
        "evenflow_inter_token_latency_seconds_count 7.0",
        'evenflow_step_duration_seconds_count{kind="prefill"} 1.0',
        "evenflow_prefill_chunks_total 1.0",
        'evenflow_worst_pauses_total{cause="',
    ):
        assert line in text


@pytest.mark.parametrize("header", ["", "Bearer wrong", "Basic sesame"])
def test_keys_guard_the_model_and_the_admin_routes(header: str) -> None:
    options = AppOptions(api_keys=("sesame",), admin_keys=("open",))
    with Live(FakeBackend(), options=options) as live:
        headers = {"Authorization": header}
        for path in ("/v1/models", "/admin/config"):
            assert live.http.get(path, headers=headers).status_code == 401
        assert live.http.post("/tokenize", json={"prompt": "a"}, headers=headers).status_code == 401
        assert live.http.get("/v1/models", headers={"Authorization": "Bearer sesame"}).status_code == 200
        assert live.http.get("/admin/config", headers={"Authorization": "Bearer sesame"}).status_code == 401
        assert live.http.get("/admin/config", headers={"Authorization": "Bearer open"}).status_code == 200
        assert live.http.get("/health").status_code == live.http.get("/metrics").status_code == 200


def test_a_key_administers_through_a_proxy() -> None:
    with Live(FakeBackend(), options=AppOptions(admin_keys=("open",))) as live:
        headers = {"Authorization": "Bearer open", "X-Forwarded-For": "203.0.113.9"}
        assert live.http.get("/admin/config", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://elsewhere.example"},
        {"Host": "rebound.example"},
        {"Origin": "http://[::1"},
        {"Host": "[::1"},
        {"X-Forwarded-For": "203.0.113.9"},
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-Forwarded-Proto": "https"},
        {"X-Real-IP": "127.0.0.1"},
        {"Forwarded": "for=127.0.0.1"},
        {"Via": "1.1 proxy"},
    ],
)
def test_without_an_admin_key_only_this_machine_may_administer(live: Live, headers: dict[str, str]) -> None:
    refused = live.http.get("/admin/config", headers=headers)
    assert refused.status_code == 403
    assert "--admin-key-file" in refused.json()["error"]["message"]
    assert live.http.post("/v1/chat/completions", json=chat(), headers=headers).status_code == 200
    assert live.http.get("/admin/config", headers={"Origin": live.url}).status_code == 200
