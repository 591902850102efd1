import json
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import TraceError
from engine.core.quantiles import nearest_rank
from engine.core.trace import TraceHeader, TraceOriginal, TraceRow
from loadtests.doctor.describe import lines
from loadtests.doctor.examine import Examination, Questions, examine
from loadtests.doctor.plots import bars, doublings, short
from loadtests.doctor.reuse import PrefixReuse
from loadtests.traces.files import Trace
from loadtests.traffic.replay import ReplayOptions, schedule_from_trace


def row(request_id: str, t: float, prompt: int = 100, output: int = 10, **fields: object) -> TraceRow:
    return TraceRow(id=request_id, t=t, prompt_tokens=prompt, output_tokens=output, **fields)  # type: ignore[arg-type]


def examined(
    rows: Iterable[TraceRow], block: int = 0, kind: str = "mooncake", **questions: object
) -> Examination:
    trace = Trace(kind, TraceHeader(block=block), iter(rows), name="test")
    return examine(trace, Questions(**questions))  # type: ignore[arg-type]


def poisson(n: int = 4000, rate: float = 2.0) -> list[TraceRow]:
    rng, t, rows = random.Random(1), 0.0, []
    for number in range(n):
        t += rng.expovariate(rate)
        rows.append(row(f"r{number}", t, prompt=1 + number % 500, output=1 + number % 7))
    return rows


def test_a_poisson_process_is_told_from_a_metronome_and_from_bursts() -> None:
    seen = examined(poisson()).arrivals
    assert seen.cv == pytest.approx(1.0, abs=0.05)
    assert seen.dispersion["1"] == pytest.approx(1.0, abs=0.1)
    assert seen.rate_per_s == pytest.approx(2.0, rel=0.05)
    regular = examined([row(str(i), i * 0.7) for i in range(1000)]).arrivals
    assert regular.cv == pytest.approx(0.0, abs=1e-6)
    assert regular.dispersion["10"] < 0.1
    bursts = examined([row(str(i), 60.3 * (i // 50) + 0.01 * (i % 50)) for i in range(1000)]).arrivals
    assert bursts.cv is not None
    assert bursts.cv > 3
    assert bursts.dispersion["1"] > 10
    assert bursts.busiest_minute == 50


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=300))
def test_length_percentiles_are_the_exact_nearest_ranks(lengths) -> None:
    seen = examined([row(str(i), i, prompt=length) for i, length in enumerate(lengths)]).prompt_tokens
    for name, value in seen.percentiles.items():
        assert value == nearest_rank(lengths, float(name[1:]) / 100)
    assert ("p50" in seen.percentiles) == (len(lengths) >= 20)
    assert (seen.n, seen.largest, sum(seen.per_bin)) == (len(lengths), max(lengths), len(lengths))


def test_long_prompts_are_the_longest_tenth_unless_said_as_in_a_replay() -> None:
    rows = poisson()
    seen = examined(rows).long_prompts
    assert seen.threshold_tokens == schedule_from_trace(rows, 1).long_prompt_tokens
    assert seen.share_of_requests == pytest.approx(0.1, abs=0.01)
    assert seen.share_of_tokens == pytest.approx(0.19, abs=0.01)
    assert examined(rows, long_prompt_tokens=500).long_prompts.requests == 8


prompts = st.lists(
    st.tuples(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), st.integers(1, 60)), max_size=40
)


@given(prompts)
def test_the_ideal_hit_is_that_of_a_cache_that_never_forgets(prompts) -> None:
    reuse, cache, hit_tokens, shared = PrefixReuse(10), set(), 0, 0
    for letters, tokens in prompts:
        chain = tuple("".join(letters[: i + 1]) for i in range(len(letters)))
        known = next((i for i, name in enumerate(chain) if name not in cache), len(chain))
        hit_tokens += min(known * 10, tokens)
        shared += known > 0
        cache.update(chain)
        reuse.add(chain, tokens)
    assert (reuse.hit_tokens, reuse.shared_rows, reuse.error_tokens) == (hit_tokens, shared, 0)


@pytest.mark.parametrize("named", [lambda n: f"{n * 2654435761 % 2**48:012x}", lambda n: f"s:{n}", str])
def test_too_many_blocks_are_sampled_and_the_error_is_told(named) -> None:
    rng = random.Random(3)
    starts = [rng.randrange(300) * 100 for _ in range(6000)]
    rows = [
        (*(named(start + i) for i in range(rng.randrange(1, 60))), named(10**6 + n))
        for n, start in enumerate(starts)
    ]
    exact, sampled = PrefixReuse(64), PrefixReuse(64, max_names=2000)
    for names in rows:
        exact.add(names, 64 * len(names))
        sampled.add(names, 64 * len(names))
    assert (exact.one_in, exact.error_tokens) == (1, 0)
    assert sampled.one_in >= 8
    assert 0 < sampled.error_tokens < 0.1 * exact.hit_tokens
    assert abs(sampled.hit_tokens - exact.hit_tokens) < 4 * sampled.error_tokens


def test_prefixes_of_text_blocks_are_shares_of_the_prompt() -> None:
    rows = [
        row("a", 0, prompt=90, prefix=("x", "y", "z")),
        row("b", 1, prompt=60, prefix=("x", "q"), cached=15),
    ]
    seen = examined(rows).prefixes
    assert seen.ideal_hit == pytest.approx(30 / 150)
    assert seen.shared_rows == 0.5
    assert seen.recorded_hit == 0.25
    assert examined(poisson()).prefixes.ideal_hit is None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), min_size=1, max_size=40))
def test_concurrency_is_that_of_a_sweep(spans) -> None:
    rows = [row(str(i), t, orig=TraceOriginal(e2e_s=float(d))) for i, (t, d) in enumerate(spans)]
    seen = examined(rows).concurrency
    inside = [sum(t <= at < t + d for t, d in spans) for at, _ in spans]
    span = max(t + d for t, d in spans) - min(t for t, _ in spans)
    assert seen.most == max(inside)
    assert seen.mean == pytest.approx(sum(d for _, d in spans) / span)
    assert seen.recorded == 1.0


def test_answers_without_recorded_times_last_as_long_as_their_tokens() -> None:
    seen = examined([row("a", 0, output=60), row("b", 1, output=30)], stream_rate=30.0).concurrency
    assert (seen.mean, seen.most, seen.recorded) == (1.5, 2, 0.0)


def test_users_and_sessions() -> None:
    rows = [
        row(
            f"a{i}",
            i,
            user="a",
            session="s",
            turn=i,
            after=f"a{i - 1}" if i else None,
            think_s=2.0 if i else None,
        )
        for i in range(6)
    ]
    rows += [row(f"b{i}", 10 + i, user=f"b{i}") for i in range(6)]
    seen = examined(rows)
    assert seen.users is not None
    assert (seen.users.num, seen.users.busiest, seen.users.busiest_tenth) == (7, 0.5, 0.5)
    assert seen.sessions is not None
    assert (seen.sessions.owners.num, seen.sessions.followed) == (1, 5)
    assert seen.sessions.think_s is not None
    assert (seen.sessions.think_s.n, seen.sessions.think_s.mean) == (5, 2.0)
    assert examined(poisson(50)).users is None


def kinds(seen: Examination) -> dict[str, int]:
    return {finding.kind: finding.rows for finding in seen.findings}


def test_a_sound_trace_has_no_findings() -> None:
    assert examined(poisson(), context_tokens=600).findings == ()


def test_what_is_found_is_what_replay_mends() -> None:
    rows = [row("a", float(i // 4)) for i in reversed(range(40))]
    rows += [row("f", 1.0, output=0), row("g", 2.0, prompt=0), row("big", 3.0, prompt=5000)]
    rows += [row("left", 4.0, output=0, cancel_s=1.0), row("orphan", 5.0, after="nobody", session="s")]
    seen = examined(rows, context_tokens=1000)
    notes = schedule_from_trace(rows, 1, ReplayOptions(context_tokens=1000)).notes
    assert kinds(seen) == {
        "failed": 2,
        "unsorted": 39,
        "quantised": 43,
        "duplicate-ids": 39,
        "lost-turns": 1,
        "beyond-context": 1,
    }
    assert {int(note.split()[0]) for note in notes} == set(kinds(seen).values())
    assert all(finding.unasked for finding in seen.findings)


def test_recordings_lie_in_the_order_of_their_ends_which_is_no_fault() -> None:
    rows = [row("long", 0.0), *poisson(50)]
    in_order_of_ends = [*rows[1:], rows[0]]
    assert examined(in_order_of_ends, kind="evenflow").findings == ()
    assert kinds(examined(in_order_of_ends)) == {"unsorted": 1}


def test_mixed_units_are_found_and_the_figures_are_of_the_mended_stamps() -> None:
    sound = poisson(400)[200:]
    mixed = [replace(r, t=r.t * 1000) if i % 3 == 1 else r for i, r in enumerate(sound)]
    seen = examined(mixed)
    assert "mixed-units" in kinds(seen)
    assert seen.arrivals.duration_s == pytest.approx(sound[-1].t - sound[0].t)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([row(str(i), i * 0.0005) for i in range(200)], "unit"),
        ([row(str(i), i * 1000.0 + i % 7) for i in range(200)], "unit"),
        ([row(str(i), 1.7e9 + i * 0.31) for i in range(200)], "late-start"),
        ([row(str(i), i * 0.5 + (400 if i > 50 else 0)) for i in range(200)], "dead-minutes"),
    ],
)
def test_what_nobody_can_be_sure_of_is_asked_and_left_alone(rows, kind) -> None:
    (finding,) = [f for f in examined(rows).findings if f.kind == kind]
    assert not finding.unasked
    assert "tuner trace convert" in finding.fix


def test_dead_minutes_are_counted() -> None:
    seen = examined([row(str(i), i * 0.5 + (400 if i > 50 else 0)) for i in range(200)])
    assert (seen.arrivals.silences, seen.arrivals.dead_minutes) == (1, 6)


def test_an_empty_trace_is_an_error() -> None:
    with pytest.raises(TraceError, match="test: the trace holds no request"):
        examined([])


@given(st.lists(st.floats(0, 1e15), min_size=1, max_size=30), st.booleans())
def test_whatever_the_stamps_it_can_be_told_in_json_and_in_words(stamps, whole) -> None:
    rows = [
        row(f"r{i % 5}", float(int(t)) if whole else t, user=f"u{i % 2}", session="s")
        for i, t in enumerate(stamps)
    ]
    seen = examined(rows)
    told = json.loads(json.dumps(seen.to_mapping(), allow_nan=False))
    assert told["requests"] == len(stamps)
    assert sum(told["arrivals"]["per_bin"]) == len(stamps)
    labels = [label for label, _ in lines(seen) if label]
    assert labels == [
        "trace",
        "requests",
        "arrivals",
        "prompts",
        "answers",
        "long prompts",
        "prefixes",
        "concurrency",
        "users",
        "sessions",
    ]


@pytest.mark.parametrize("fields", [{"prompt": 10**30}, {"output": 10**13}, {"t": 1.7e18}])
def test_what_nobody_can_mean_is_an_error(fields) -> None:
    with pytest.raises(TraceError, match=r"request a: no time beyond .* is the unit right"):
        examined([row(**({"request_id": "a", "t": 0.0} | fields))])


def test_bars_show_whatever_is_above_zero() -> None:
    assert bars([0, 1, 50, 100]) == " ▁▄█"
    assert bars([0, 0]) == "  "
    assert doublings([0, 0, 3, 0, 6]) == "4 ▄ █ 16"
    assert [short(n) for n in (7, 512, 8192, 3 * 2**20)] == ["7", "512", "8k", "3M"]
