from __future__ import annotations

from engine.core.config import PrefillOrder, SchedulerConfig
from tests.tuner.fakes import SLO_S, FakeClock, FakeServer
from tuner.evaluation.evaluators import Measurement
from tuner.search.prescreen import Prescreen
from tuner.search_space import SearchSpace, fixed_chunks
from tuner.traffic.windows import is_confirmed

SEED = 5
BASE = SchedulerConfig()
SPACE = SearchSpace(BASE, SLO_S, 999, 3)


class Lonely(FakeServer):
    """In the study's own window the long prompt meets nobody, so all configs do the same."""

    def evaluate(self, config: SchedulerConfig, seed: int, abort_pause_s: float | None) -> Measurement:
        return super().evaluate(fixed_chunks(BASE, 20) if seed == SEED else config, seed, abort_pause_s)


class Ordered(FakeServer):
    """Who goes first matters in all windows but the study's own."""

    def evaluate(self, config: SchedulerConfig, seed: int, abort_pause_s: float | None) -> Measurement:
        is_slow = seed == SEED or config.prefill_order is not PrefillOrder.SHORTEST
        return super().evaluate(fixed_chunks(BASE, 60 if is_slow else 200), seed, abort_pause_s)


def idle_knobs(server: FakeServer, config: SchedulerConfig) -> tuple[str, ...]:
    prescreen = Prescreen(server, SPACE, SEED, 0)
    prescreen.take_telling_window(config)
    return prescreen.idle_knobs([config])


def test_a_knob_that_acts_in_the_telling_window_is_not_idle() -> None:
    assert set(idle_knobs(Ordered(FakeClock()), BASE)) == {"solo_chunk_tokens", "max_running_requests"}


def test_runs_that_were_stopped_prove_no_knob_idle() -> None:
    slow, quick = (FakeServer(FakeClock(), floor_s=floor_s) for floor_s in (2.0, 0.02))
    assert idle_knobs(slow, fixed_chunks(BASE, 64)) == ()
    assert len(idle_knobs(quick, fixed_chunks(BASE, 64))) == 3


def test_a_window_that_tells_configs_apart_is_taken_in() -> None:
    prescreen = Prescreen(Lonely(FakeClock()), SPACE, SEED, 0)
    small, large = fixed_chunks(BASE, 64), fixed_chunks(BASE, 128)
    assert prescreen.predict(small).first_ttft_s == prescreen.predict(large).first_ttft_s
    prescreen.take_telling_window(small)
    assert prescreen.predict(small).first_pause_s < prescreen.predict(large).first_pause_s
    assert not prescreen.predict(small).is_close


def test_of_the_windows_the_one_is_taken_in_which_long_requests_wait_longest() -> None:
    server = FakeServer(FakeClock())
    slow: list[int] = []

    class Uneven(FakeServer):
        def evaluate(self, config: SchedulerConfig, seed: int, abort_pause_s: float | None) -> Measurement:
            slow.append(seed)
            chunk = 16 if len(set(slow)) == 4 else 64
            return server.evaluate(fixed_chunks(BASE, chunk), seed, abort_pause_s)

    prescreen = Prescreen(Uneven(FakeClock()), SPACE, SEED, 0)
    prescreen.take_telling_window(BASE)
    telling = slow[3]
    slow.clear()
    prescreen.predict(BASE)
    assert slow == [SEED, telling]


def test_nothing_is_simulated_that_the_confirmation_will_meet() -> None:
    server = FakeServer(FakeClock())
    prescreen = Prescreen(server, SPACE, SEED, 0)
    prescreen.take_telling_window(BASE)
    prescreen.search(5, 1.0)
    prescreen.look_closer(list(prescreen.found))
    assert all(prescreen.is_close([config]) for config in prescreen.found)
    assert not any(is_confirmed(seed, SEED) for seed in server.seeds)


def test_simulations_of_long_traffic_end_when_their_time_is_up() -> None:
    clock = FakeClock()
    prescreen = Prescreen(FakeServer(clock), SPACE, SEED, 0, clock, allowance_s=100.0)
    prescreen.take_telling_window(BASE)
    assert clock.now_s < 50.0
    prescreen.search(300, 1.0)
    assert 100.0 < clock.now_s < 140.0
    found = list(prescreen.found)
    for config in found:
        prescreen.scan(config, 1.07)
    prescreen.look_closer(found)
    assert clock.now_s < 600.0  # what had begun is ended: one config in 33 windows
    before_s = clock.now_s
    prescreen.look_closer(list(prescreen.found))
    prescreen.search(10, 1.0)
    assert clock.now_s == before_s
