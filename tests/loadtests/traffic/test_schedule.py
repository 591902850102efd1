import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.slo import SloClass
from loadtests.errors import ProfileError
from loadtests.traffic.offered_load import build_schedule
from loadtests.traffic.profile_fields import parse_profile
from loadtests.traffic.profiles import load_profile, profile_names
from loadtests.traffic.schedule import Schedule, Sizing, uncached_tokens

GROUPED = [name for name in profile_names() if load_profile(name).trace is None]
LAPTOP = Sizing(prefill_tokens_per_s=270.0, decode_step_s=0.1, context_tokens=8192, slo_pause_s=0.5)
SIZINGS = st.builds(
    Sizing,
    prefill_tokens_per_s=st.floats(50, 50_000),
    decode_step_s=st.floats(0.002, 0.3),
    context_tokens=st.integers(2048, 131_072),
    slo_pause_s=st.floats(0.1, 2.0),
)


def schedule_of(groups: dict[str, object], sizing: Sizing = LAPTOP, **fields: object) -> Schedule:
    values = {"duration": 10, "warm_up": 2, "groups": groups} | fields
    return build_schedule(parse_profile(values, "test.yaml"), 1, sizing)


def group(arrivals: dict[str, object], prompt: object = 10, output: object = 5) -> dict[str, object]:
    return {"prompt_tokens": prompt, "max_tokens": output, "arrivals": arrivals}


@given(st.sampled_from(GROUPED), st.integers(0, 1 << 32), SIZINGS)
def test_every_schedule_is_sound(name: str, seed: int, sizing: Sizing) -> None:
    schedule = build_schedule(load_profile(name), seed, sizing)
    times = [request.at_s for request in schedule.requests]
    ids = [request.id for request in schedule.requests]
    assert times == sorted(times)
    assert len(set(ids)) == len(ids)
    assert all(0 <= at_s <= schedule.duration_s for at_s in times)
    assert all(r.prompt_tokens + r.max_tokens <= sizing.context_tokens for r in schedule.requests)
    assert all(r.prompt_tokens > 0 and r.max_tokens > 0 for r in schedule.requests)


@given(st.sampled_from(GROUPED), st.integers(0, 1 << 32))
def test_the_same_seed_gives_the_same_requests_and_another_gives_others(name: str, seed: int) -> None:
    profile = load_profile(name)
    assert build_schedule(profile, seed, LAPTOP) == build_schedule(profile, seed, LAPTOP)
    assert (
        build_schedule(profile, seed, LAPTOP).requests != build_schedule(profile, seed + 1, LAPTOP).requests
    )


@given(st.integers(0, 1000))
def test_ambush_has_streams_alive_and_long_prompts_that_overlap(seed: int) -> None:
    schedule = build_schedule(load_profile("ambush"), seed, LAPTOP)
    long = [r for r in schedule.requests if r.kind == "long"]
    assert all(r.prompt_tokens >= schedule.long_prompt_tokens for r in long)
    assert all(r.prompt_tokens < schedule.long_prompt_tokens for r in schedule.requests if r.kind != "long")
    prefill_s = long[0].prompt_tokens / LAPTOP.prefill_tokens_per_s
    assert prefill_s >= 3 * LAPTOP.slo_pause_s
    assert any(b.at_s - a.at_s < prefill_s for a, b in itertools.pairwise(long))
    assert {r.kind for r in schedule.requests if r.measured} == {"stream", "long", "short"}


@pytest.mark.parametrize(
    "arrivals",
    [
        {"process": "poisson", "rate": 1e12},
        {"process": "burst", "count": 10**9, "every": 3},
        {"process": "burst", "count": 100, "every": 0.001},
        {"process": "lanes", "count": 10**9},
    ],
)
def test_more_requests_than_a_run_plays_are_refused_before_they_are_made(arrivals: dict[str, object]) -> None:
    with pytest.raises(
        ProfileError, match=r"group crowd sends about [\d,]+ requests, and a run plays 1,000,000"
    ):
        schedule_of({"crowd": group(arrivals)})


def test_changing_one_group_leaves_the_others_as_they_were() -> None:
    chat = group({"process": "poisson", "rate": 1.0}, {"uniform": [10, 90]})
    alone = schedule_of({"chat": chat})
    beside = schedule_of({"more": group({"process": "burst", "count": 2, "every": 3}), "chat": chat})
    assert [r for r in beside.requests if r.kind == "chat"] == list(alone.requests)


def test_the_warm_up_comes_before_the_window_and_is_not_measured() -> None:
    warm = group({"process": "at", "times": [0, 1]}) | {"warm_up": True}
    schedule = schedule_of({"warm": warm, "g": group({"process": "at", "times": [0, 9.5]})})
    assert [(r.at_s, r.measured) for r in schedule.requests] == [
        (0, False),
        (1, False),
        (2, True),
        (11.5, True),
    ]
    assert schedule.num_measured == 2
    assert schedule.duration_s == 12


def test_lanes_put_streams_back_to_back() -> None:
    lanes = group({"process": "lanes", "count": 2, "spread": 1}, output=40)
    times = [request.at_s for request in schedule_of({"g": lanes}).requests]
    assert times == [2, 3, 6, 7, 10, 11]


def test_an_auto_stream_lasts_about_as_long_as_the_window() -> None:
    (stream,) = schedule_of({"g": group({"process": "lanes", "count": 1}, output="auto")}).requests
    assert stream.max_tokens == 100


def test_time_devoted_to_prompts_shortens_the_streams_that_fill_the_window() -> None:
    lanes = group({"process": "lanes", "count": 1}, output="auto")
    long = group({"process": "at", "times": [1]}, prompt=1350)
    stream = schedule_of({"g": lanes, "long": long}).requests[0]
    assert stream.max_tokens == 50


@given(st.integers(0, 99), st.floats(0.3, 2.0))
def test_random_arrivals_keep_their_rate(seed: int, cv: float) -> None:
    arrivals = {"process": "gamma", "rate": 2.0, "cv": cv}
    values = {"duration": 1000, "groups": {"g": group(arrivals)}}
    schedule = build_schedule(parse_profile(values, "x"), seed, LAPTOP)
    assert 1500 < len(schedule.requests) < 2500


@pytest.mark.parametrize(
    "length",
    [
        {"lognormal": {"median": 100, "sigma": 0.6, "min": 64, "max": 400}},
        {"lognormal": {"median": 100, "sigma": 1.2}},
        {"uniform": [20, 300]},
    ],
)
def test_a_load_is_offered_whatever_the_lengths_are_drawn_from(length: object) -> None:
    groups = {"g": group({"process": "gamma", "load": 0.5, "cv": 0.1}, length, length)}
    roomy = Sizing(prefill_tokens_per_s=270.0, decode_step_s=0.1, context_tokens=1 << 22, slo_pause_s=0.5)
    schedule = schedule_of(groups, roomy, duration=20_000, warm_up=0)
    busy_s = sum(roomy.seconds(r.prompt_tokens, r.max_tokens) for r in schedule.requests)
    assert busy_s / 20_000 == pytest.approx(0.5, rel=0.05)


def test_a_prompt_that_cannot_fit_is_named() -> None:
    with pytest.raises(ProfileError, match=r"group g needs 9005 tokens .* context is 8192"):
        schedule_of({"g": group({"process": "at", "times": [0]}, prompt=9000)})


def test_a_machine_too_fast_for_the_context_gets_a_note() -> None:
    fast = Sizing(prefill_tokens_per_s=1e5, decode_step_s=0.002, context_tokens=8192, slo_pause_s=0.5)
    schedule = build_schedule(load_profile("ambush"), 1, fast)
    assert "hardly needed" in schedule.notes[0]
    assert build_schedule(load_profile("ambush"), 1, LAPTOP).notes == ()


SESSIONS = {
    "agent": group({"process": "at", "times": [0, 3]}, 500, 20)
    | {"shared_tokens": 200, "turns": 4, "new_tokens": 50, "think": 0.5}
}


def test_a_session_grows_turn_by_turn_on_the_answers_before() -> None:
    requests = schedule_of(SESSIONS, duration=60).requests
    turns = [request for request in requests if request.session == "agent-0"]
    assert [turn.prompt_tokens for turn in turns] == [500, 570, 640, 710]
    assert [turn.after for turn in turns] == [None, "agent-0", "agent-0.1", "agent-0.2"]
    assert [turn.think_s for turn in turns] == [None, 0.5, 0.5, 0.5]
    for before, turn in itertools.pairwise(turns):
        assert turn.prefix[: len(before.prefix)] == before.prefix
        assert turn.at_s > before.at_s


def test_prompts_of_a_group_begin_alike_as_far_as_it_says() -> None:
    requests = schedule_of(SESSIONS, duration=60).requests
    first, second = (request.prefix for request in requests if request.after is None)
    assert first[:6] == second[:6]  # 200 tokens in whole blocks of 32
    assert not set(first[6:]) & set(second[6:])


def test_a_session_ends_where_the_context_does() -> None:
    tight = Sizing(prefill_tokens_per_s=1e6, decode_step_s=1e-4, context_tokens=700, slo_pause_s=0.5)
    requests = schedule_of(SESSIONS, tight, duration=60).requests
    assert max(request.prompt_tokens for request in requests) == 570


def test_turns_that_would_begin_after_the_window_are_left_out() -> None:
    assert all(request.at_s < 12 for request in schedule_of(SESSIONS, duration=10).requests)


def test_what_is_held_already_is_not_counted_as_load() -> None:
    requests = schedule_of(SESSIONS, duration=60).requests
    uncached = dict(zip((r.id for r in requests), uncached_tokens(requests), strict=True))
    assert uncached["agent-0"] == 500
    assert uncached["agent-0.1"] == 570 - 16 * 32
    assert uncached["agent-1"] == 500 - 6 * 32


def test_classes_come_in_seconds_whatever_they_are_written_in() -> None:
    classes = {"fast": {"ttft": 2, "pause": "200ms"}, "slow": {"ttft": "9s"}, "any": {}}
    groups = {"g": group({"process": "at", "times": [0]}) | {"class": "fast", "retries": 2}}
    schedule = schedule_of(groups, classes=classes, time_unit="long_prefill", long_prefill_slos=10)
    unit_s = 10 * LAPTOP.slo_pause_s
    assert schedule.classes == (SloClass("fast", 2 * unit_s, 0.2), SloClass("slow", 9.0), SloClass("any"))
    assert (schedule.requests[0].slo_class, schedule.requests[0].retries) == ("fast", 2)


@pytest.mark.parametrize(("threshold", "tokens"), [("auto", 675), ({"auto": 0.2}, 270), (99, 99)])
def test_what_counts_as_long(threshold: object, tokens: int) -> None:
    groups = {"g": group({"process": "at", "times": [0]}, "auto")}
    schedule = schedule_of(groups, long_prefill_slos=10, long_prompt_tokens=threshold)
    assert (schedule.requests[0].prompt_tokens, schedule.long_prompt_tokens) == (1350, tokens)
