import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.attainment import attainment_by_class
from engine.core.quantiles import nearest_rank, supported, wilson_interval
from engine.core.records import ContentEvent, Outcome, RequestRecord
from engine.core.report import (
    TrialSummary,
    chunking_efficiency,
    dispatch_lag,
    is_long,
    itl_samples,
    pauses,
    prefill_overhead,
    scored_ttft,
    summarise,
    summarise_runs,
    tpot,
    ttft,
    ttft_wire,
    worst_pause,
)
from engine.core.slo import Slo, SloClass

SLO = Slo(0.5, ttft_long_s=5.0, ttft_short_s=1.0)
LONG = 500


def record(request_id: str = "r", arrivals=(), tokens=None, **fields) -> RequestRecord:
    counts = tokens or [1] * len(arrivals)
    defaults = {
        "scheduled_at_s": 0.0,
        "sent_at_s": 0.0,
        "planned_prompt_tokens": 10,
        "max_tokens": 100,
        "outcome": Outcome.COMPLETED,
        "ended_at_s": arrivals[-1] if arrivals else 1.0,
        "output_tokens": sum(counts),
    }
    events = tuple(ContentEvent(at, n) for at, n in zip(arrivals, counts, strict=True))
    return RequestRecord(id=request_id, events=events, **(defaults | fields))


def summary(*records: RequestRecord) -> TrialSummary:
    return summarise(records, SLO, long_prompt_tokens=LONG)


def test_ttft_counts_from_the_schedule_and_wire_ttft_from_the_send() -> None:
    late = record(arrivals=[3.0], scheduled_at_s=1.0, sent_at_s=1.5)
    assert ttft(late) == 2.0
    assert ttft_wire(late) == 1.5
    assert dispatch_lag(late) == 0.5


def test_a_retry_counts_towards_ttft_but_not_wire_ttft() -> None:
    retried = record(arrivals=[9.0], sent_at_s=0.0, resent_at_s=7.0)
    assert ttft(retried) == 9.0
    assert ttft_wire(retried) == 2.0


def test_worst_pause_never_contains_ttft() -> None:
    assert worst_pause(record(arrivals=[10.0, 10.1, 10.4, 10.5])).seconds == pytest.approx(0.3)


@pytest.mark.parametrize("arrivals", [[], [1.0]])
def test_worst_pause_is_undefined_without_two_content_events(arrivals) -> None:
    assert worst_pause(record(arrivals=arrivals)) is None


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.UNFINISHED, Outcome.CANCELLED])
def test_a_stream_that_did_not_finish_contributes_its_open_gap_as_a_bound(outcome) -> None:
    cut = record(arrivals=[1.0, 1.1], outcome=outcome, ended_at_s=4.1)
    pause = worst_pause(cut)
    assert pause.seconds == pytest.approx(3.0)
    assert pause.is_bound
    assert summary(cut).worst_pause_is_bound


def test_a_stream_with_all_its_tokens_has_no_open_gap() -> None:
    whole = record(arrivals=[1.0, 1.1], max_tokens=2, outcome=Outcome.UNFINISHED, ended_at_s=9.0)
    assert worst_pause(whole).seconds == pytest.approx(0.1)


def test_inter_token_latency_is_weighted_by_the_tokens_of_an_event() -> None:
    assert itl_samples(record(arrivals=[0.0, 0.4, 0.5], tokens=[1, 4, 1])) == [
        (pytest.approx(0.1), 4),
        (pytest.approx(0.1), 1),
    ]


def test_tpot_leaves_out_the_first_event_with_all_its_tokens() -> None:
    assert tpot(record(arrivals=[1.0, 2.0, 3.0], tokens=[3, 2, 2])) == 0.5
    assert tpot(record(arrivals=[1.0], tokens=[3])) is None
    assert tpot(record()) is None


def test_a_cached_prefix_does_not_make_a_request_long() -> None:
    assert is_long(record(prompt_tokens=600), LONG)
    assert not is_long(record(prompt_tokens=600, cached_tokens=200), LONG)
    assert is_long(record(planned_prompt_tokens=LONG), LONG)


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.FAILED, Outcome.NEVER_SENT])
def test_lost_long_requests_count_as_infinite_ttft(outcome) -> None:
    served = record("a", [2.0, 2.1], prompt_tokens=600)
    lost = record("b", prompt_tokens=600, outcome=outcome)
    result = summary(served, lost)
    assert result.long_ttft_p95_s == math.inf
    assert result.long_ttft_n == 2


def test_a_request_still_waiting_counts_as_at_least_its_elapsed_time() -> None:
    waiting = record(prompt_tokens=600, outcome=Outcome.UNFINISHED, scheduled_at_s=10.0, ended_at_s=70.0)
    assert scored_ttft(waiting) == 60.0
    assert summary(waiting).long_ttft_is_bound


def test_a_cut_stream_is_lost_even_when_its_first_token_came() -> None:
    assert scored_ttft(record(arrivals=[1.0], outcome=Outcome.FAILED)) == math.inf


def test_short_requests_have_their_own_ttft() -> None:
    result = summary(
        record("a", [1.0, 1.1]), record("b", [3.0, 3.1]), record("c", [2.0, 2.1], prompt_tokens=600)
    )
    assert (result.short_ttft_p50_s, result.short_ttft_p95_s, result.short_ttft_n) == (1.0, 3.0, 2)
    assert result.long_ttft_p95_s == 2.0


def test_refusing_costs_attainment_and_shows_in_the_shed_rate() -> None:
    served = [record(f"s{i}", [0.5, 0.6]) for i in range(3)]
    result = summary(*served, record("x", outcome=Outcome.REFUSED))
    assert result.attainment == 0.75
    assert result.shed_rate == 0.25
    assert result.counts["refused"] == 1
    assert sum(result.counts.values()) == result.num_scheduled
    assert result.attainment_low < 0.75 < result.attainment_high


@pytest.mark.parametrize(
    ("arrivals", "prompt_tokens", "attained"),
    [
        ([0.9, 1.0], 10, 1.0),
        ([1.1, 1.2], 10, 0.0),
        ([1.1, 1.2], 600, 1.0),
        ([0.9, 1.5], 10, 0.0),
    ],
)
def test_attainment_needs_both_ttft_in_its_class_and_the_pause(arrivals, prompt_tokens, attained) -> None:
    assert summary(record(arrivals=arrivals, prompt_tokens=prompt_tokens)).attainment == attained


def test_who_left_before_the_first_token_was_not_served() -> None:
    assert summary(record("x", [], outcome=Outcome.CANCELLED)).attainment == 0.0


def test_the_worst_pause_says_whose_and_when() -> None:
    result = summary(record("a", [0.0, 0.1]), record("b", [0.0, 0.2, 1.0]))
    assert (result.worst_pause_request, result.worst_pause_at_s) == ("b", 1.0)
    assert result.worst_pause_s == pytest.approx(0.8)


def test_pause_rate_is_per_minute_of_streaming() -> None:
    result = summary(record("a", [0.0, 20.0, 20.4]), record("b", [0.0, 39.6]))
    assert result.pause_rate_per_min == pytest.approx(2.0)


def test_the_warm_up_is_left_out() -> None:
    result = summary(record("a", [0.0, 9.0], measured=False), record("b", [0.0, 0.1]))
    assert result.num_scheduled == 1
    assert result.worst_pause_s == pytest.approx(0.1)


def test_repeats_are_pooled_not_averaged() -> None:
    first = [record(f"a{i}", [1.0, 1.0 + 0.01 * i]) for i in range(1, 10)]
    second = [record("b", [1.0, 2.0])]
    pooled = summarise_runs([first, second], SLO, long_prompt_tokens=LONG)
    assert pooled.num_runs == 2
    assert pooled.pause_p99_s == pytest.approx(1.0)
    assert pooled.num_streams == 10


def test_an_empty_trial_has_no_numbers_and_invents_none() -> None:
    result = summarise([], SLO, long_prompt_tokens=LONG)
    assert result.worst_pause_s is None
    assert result.long_ttft_p95_s is None
    assert (result.attainment, result.attainment_low, result.attainment_high) == (0.0, 0.0, 1.0)


def test_json_holds_no_infinity_and_says_which_numbers_were() -> None:
    values = summary(record(prompt_tokens=600, outcome=Outcome.REFUSED)).to_mapping()
    json.dumps(values, allow_nan=False)
    assert values["long_ttft_p95_s"] is None
    assert "long_ttft_p95_s" in values["unbounded"]


@pytest.mark.parametrize(
    ("q", "n", "answer"),
    [(0.5, 20, True), (0.5, 19, False), (0.95, 200, True), (0.95, 199, False), (0.99, 1000, True)],
)
def test_a_percentile_is_printed_only_with_samples_enough(q, n, answer) -> None:
    assert supported(q, n) is answer


@given(st.lists(st.floats(allow_nan=False), min_size=1), st.floats(0.01, 1.0))
def test_nearest_rank_is_a_sample_with_at_least_its_share_at_or_below(samples, q) -> None:
    value = nearest_rank(samples, q)
    assert value in samples
    assert sum(sample <= value for sample in samples) >= q * len(samples) - 1e-6
    assert sum(sample < value for sample in samples) < q * len(samples) + 1e-6


def test_nearest_rank_of_twenty_at_95_is_the_nineteenth() -> None:
    assert nearest_rank(range(1, 21), 0.95) == 19


@given(st.integers(0, 500), st.integers(1, 500))
def test_wilson_interval_contains_the_share_and_stays_within_one(successes, n) -> None:
    successes = min(successes, n)
    low, high = wilson_interval(successes, n)
    assert 0.0 <= low <= successes / n + 1e-12
    assert successes / n - 1e-12 <= high <= 1.0


@given(st.lists(st.floats(0.001, 10.0), min_size=1, max_size=30), st.floats(0.0, 5.0))
def test_gaps_add_up_to_the_time_streamed(gaps, first_s) -> None:
    arrivals = [first_s]
    for gap in gaps:
        arrivals.append(arrivals[-1] + gap)
    stream = record(arrivals=arrivals)
    assert sum(pause.seconds for pause in pauses(stream)) == pytest.approx(arrivals[-1] - first_s)
    assert worst_pause(stream).seconds == pytest.approx(max(gaps), abs=1e-9)


@given(st.permutations(range(6)))
def test_the_summary_does_not_depend_on_the_order_of_the_records(order) -> None:
    records = [record(f"r{i}", [0.1 * i, 0.3 * i + 0.1], scheduled_at_s=0.05 * i) for i in range(6)]
    shuffled = summary(*(records[i] for i in order))
    expected = summary(*records)
    changed = {
        f.name for f in dataclasses.fields(expected) if getattr(shuffled, f.name) != getattr(expected, f.name)
    }
    assert changed == set()


def test_each_class_is_judged_by_its_own_limits() -> None:
    classes = (SloClass("fast", ttft_s=1.0, pause_s=0.2), SloClass("slow", ttft_s=5.0), SloClass("none"))
    records = [
        record("a", [0.5, 0.6], slo_class="fast"),
        record("b", [0.5, 0.8], slo_class="fast"),  # a pause that only the others allow
        record("c", [2.0, 2.1], slo_class="fast"),
        record("d", [2.0, 2.4], slo_class="slow"),
        record("e", outcome=Outcome.REFUSED, slo_class="slow"),
        record("f", outcome=Outcome.NEVER_SENT, slo_class="slow"),
        record("g", [0.1], slo_class="slow", measured=False),
    ]
    fast, slow, none = attainment_by_class(records, classes, 0.5)
    assert (fast.num_met, fast.num_scheduled) == (1, 3)
    assert (slow.num_met, slow.num_scheduled) == (1, 3)
    assert (fast.low, fast.high) == wilson_interval(1, 3)
    assert slow.slo == Slo(0.5, 5.0, 5.0)
    assert (none.num_scheduled, none.attainment, none.low, none.high) == (0, 0.0, 0.0, 1.0)


def test_overhead_is_what_chunks_and_company_add_to_the_reading() -> None:
    assert prefill_overhead(prefill_s=3.5, alone_s=3.1) == pytest.approx(0.129, abs=0.001)
    assert prefill_overhead(prefill_s=3.1, alone_s=3.1) == 0.0


def test_a_prompt_that_waits_only_for_its_chunks_and_the_streams_tokens_is_read_at_the_limit() -> None:
    assert chunking_efficiency(alone_s=3.0, decode_s=0.5, ttft_s=3.5) == 1.0
    assert chunking_efficiency(alone_s=3.0, decode_s=0.5, ttft_s=7.0) == 0.5
