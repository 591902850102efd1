from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.core.config import SchedulerConfig
from tests.tuner.fakes import FakeClock, FakeServer, StudyBench
from tuner.reporting import findings
from tuner.reporting.report import Subject, to_json, to_text
from tuner.search.conclusion import out_of_reach
from tuner.search.limits import Floor
from tuner.trials import Trial

SUBJECT = Subject(study="s", slo_pause_s=0.5, model="m", profile="p", db="evenflow.db", elapsed_s=12.0)
KEYS = {
    "study", "slo_pause_s", "model", "profile", "confirmed", "live_trials", "simulated_trials", "baseline",
    "rule_of_thumb", "winner", "simulator_error", "elapsed_s", "db",
}  # fmt: skip


def test_the_json_object_has_every_promised_key(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    result = to_json(SUBJECT, bench.run(FakeServer(bench.clock)))
    assert set(result) >= KEYS
    assert set(result["winner"]) >= {"config", "long_ttft_p95_s", "worst_pause_s", "shed_rate", "replicates"}
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_the_table_marks_who_keeps_the_slo(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    text = to_text(SUBJECT, bench.run(FakeServer(bench.clock)))
    rows = {line.split("(")[0].split("  ")[1]: line for line in text.splitlines()[1:4]}
    assert "✗" in rows["chunking off"]
    assert "✓" in text.splitlines()[3]
    assert "nobody's answer stopped for more than" in text
    assert "tuner apply s --to" in text


def test_the_next_commands_name_the_server_and_the_database_of_the_study(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    result = bench.run(FakeServer(bench.clock))
    text = to_text(SUBJECT, result, "http://10.0.0.1:8000", "my studies.db")
    assert "tuner apply s --to http://10.0.0.1:8000 --db 'my studies.db'" in text
    assert "tuner report s --html report.html --db 'my studies.db'" in text
    assert "tuner show s --db 'my studies.db'" in text
    assert "--db" not in to_text(SUBJECT, result)


def test_a_study_that_ran_nothing_has_no_table_of_runs() -> None:
    floor = Floor(decode_s=0.6, chunk_s=0.7)
    first, tested, *_ = to_text(SUBJECT, out_of_reach(floor, 0.5, SchedulerConfig())).splitlines()
    assert first.startswith("No config keeps a pause of 0.5 s")
    assert tested == "Nothing was tested: what the server's steps take alone rules it out."


def test_what_could_not_be_measured_is_one_line_with_what_to_change(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    result = bench.run(FakeServer(bench.clock, spoils=lambda config: config.prefill_chunk_tokens == 512))
    (line,) = [line for line in to_text(SUBJECT, result).splitlines() if "could not be measured" in line]
    assert line == (
        "1 setting could not be measured on this host at this load: dispatch lag; close other programs."
    )
    assert to_json(SUBJECT, result)["unmeasured"] == ["dispatch lag; close other programs"]


@pytest.mark.parametrize(
    ("baseline", "rule", "winner", "title"),
    [
        (3, 3, 9, "long TTFT worst"),
        (19, 0, 19, "long TTFT worst"),
        (7, 7, 20, "long TTFT p95 (n = 7 to 20)"),
        (240, 240, 720, "long TTFT p95 (n = 240 to 720)"),
        (240, 240, 240, "long TTFT p95 (n = 240)"),
    ],
)
def test_a_percentile_is_named_with_its_samples(baseline: int, rule: int, winner: int, title: str) -> None:
    rows = {"baseline": baseline, "rule_of_thumb": rule, "winner": winner, "smallest_pause": 1}
    assert findings.ttft_title({name: {"long_ttft_n": n} for name, n in rows.items()}) == title


def outcome(long_ttft_s: float, chunk_tokens: int = 128) -> dict[str, object]:
    config = {"prefill_chunk_tokens": chunk_tokens}
    return {"long_ttft_p95_s": long_ttft_s, "worst_pause_s": 0.4, "config": config}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"winner_beside_baseline": outcome(5.0)}, "wait 25% longer, on the same requests; nobody"),
        ({"winner_beside_baseline": outcome(3.0)}, "wait 25% less long, on the same requests; nobody"),
        ({"winner_beside_baseline": outcome(4.0)}, "wait as long as before, on the same requests; nobody"),
        ({}, "wait 50% longer, though on other requests of the same kind; nobody"),
        ({"claim": {"num_windows": 0}}, "wait 50% longer, on the same requests; nobody"),
        ({"baseline": outcome(4.0)}, "Chunking off keeps the SLO on this traffic; nobody"),
    ],
)
def test_the_wait_is_compared_on_the_same_requests_where_it_can_be(
    more: dict[str, object], said: str
) -> None:
    result = {"baseline": outcome(4.0, 1024), "winner": outcome(6.0), "claim": {"num_windows": 3}}
    assert said in findings.sentence_of(result | more)


@pytest.mark.parametrize(("requests", "said"), [(36, "3 × 12 requests"), (17, "17 requests in 3 runs")])
def test_what_was_tested_is_counted_though_windows_differ(requests: int, said: str) -> None:
    winner = outcome(6.0) | {"requests": requests, "replicates": 3}
    assert f"Tested: {said};" in findings.tested_of({"winner": winner, "live_trials": 9})[0]


def test_the_winners_own_runs_on_the_baselines_requests_are_kept(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    result = bench.run(FakeServer(bench.clock))
    trials = [Trial.from_row(row) for row in bench.studies.trials(bench.study)]
    beside = to_json(replace(SUBJECT, trials=trials), result)["winner_beside_baseline"]
    assert result.winner is not None
    own = [t for t in trials if t.seed == 1 and t.config == result.winner.config]
    assert (beside["config"], beside["replicates"]) == (result.winner.config.to_mapping(), len(own))
    others = [trial for trial in trials if trial not in own]
    assert to_json(replace(SUBJECT, trials=others), result)["winner_beside_baseline"] is None


def test_when_nothing_keeps_the_slo_the_price_of_the_smallest_pause_is_said(tmp_path: Path) -> None:
    bench = StudyBench(tmp_path)
    result = bench.run(FakeServer(bench.clock, floor_s=0.52))
    line = findings.no_config_line(to_json(SUBJECT, result))
    assert "smallest pause reached is 0.55 s" in line
    assert to_json(SUBJECT, result)["confirmed"] is False
    assert to_json(SUBJECT, result)["winner"] is None


@pytest.mark.parametrize(
    ("weakened", "said"),
    [
        ({}, "On traffic that the search had not seen, none of 3 streams"),
        ({"num_windows": 1}, "On 1 window of traffic that the search had not seen, in 3 runs, none of 3"),
        ({"num_windows": 0}, "On the very requests that were searched on, 3 times over, none of 3"),
        ({"num_candidates": 4}, "for the 4 configs that were tried on it"),
        ({"num_windows": 0, "most_beyond": None}, "the longest 0.28 s, which says nothing certain of other"),
        (
            {"num_accidents": 1, "num_accident_streams": 4, "longest_accident_s": 1.72, "most_beyond": 0.9},
            "in another run, set aside as an accident, one paused 1.72 s: with 95 % confidence at most 90.0% "
            "of such streams do (exact binomial bound, streams taken as independent, all 4 streams of what "
            "was set aside counted as beyond it)",
        ),
        ({"num_accidents": 1, "longest_accident_s": 1.72}, "independent, without what was set aside)"),
        ({"narrow": True}, "It keeps the SLO narrowly"),
    ],
)
def test_a_claim_says_what_weakens_it(tmp_path: Path, weakened: dict[str, object], said: str) -> None:
    result = to_json(SUBJECT, StudyBench(tmp_path).run(FakeServer(FakeClock())))
    others = {"num_candidates": 1, "narrow": False}
    assert said in " ".join(findings.tested_of(result | {"claim": result["claim"] | others | weakened}))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"runs": 14}, "Simulator off by 8% (TTFT), 9% (pause): median of 14 runs."),
        ({"runs": 1}, "Simulator off by 8% (TTFT), 9% (pause): median of 1 run."),
        ({}, "Simulator off by 8% (TTFT), 9% (pause)."),
    ],
)
def test_how_far_off_the_simulator_was_says_over_how_many_runs(
    tmp_path: Path, more: dict[str, int], said: str
) -> None:
    result = to_json(SUBJECT, StudyBench(tmp_path).run(FakeServer(FakeClock())))
    errors = {"long_ttft_p95": 0.08, "worst_pause": 0.09}
    assert findings.tested_of(result | {"simulator_error": errors | more})[-1] == said
