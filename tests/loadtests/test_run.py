import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

import pytest

from engine.core.records import Outcome
from engine.core.report import worst_pause
from loadtests.client.target import Target
from loadtests.errors import LoadRunError, TargetError
from loadtests.run import Progress, run_load
from loadtests.selftest.scripted_server import DONE, GENERATION, Script, ScriptedServer, Write, event, text
from loadtests.traffic.schedule import Schedule, ScheduledRequest
from tests.patience import DEADLINE_S, until

END = Write(0.0, event({}, finish="length") + DONE)
FOREVER = 2 * DEADLINE_S
FROZEN = Script((Write(0.0, text(), 1), Write(FOREVER, text(), 1), END))


def answer(num_tokens: int, every_s: float = 0.01) -> Script:
    return Script((*[Write(every_s, text(), 1)] * num_tokens, END))


def schedule(tokens: Iterable[int], every_s: float = 0.02, **fields: object) -> Schedule:
    requests = tuple(
        ScheduledRequest(
            id=f"r{i}", at_s=every_s * i, prompt_tokens=32, max_tokens=n, prompt_seed=i, kind="k", **fields
        )  # type: ignore[arg-type]
        for i, n in enumerate(tokens)
    )
    return Schedule(
        name="t", seed=0, requests=requests, duration_s=0.1, grace_s=FOREVER, long_prompt_tokens=900
    )


def test_every_request_comes_back_once_in_schedule_order() -> None:
    seen: list[Progress] = []
    with ScriptedServer({3: answer(3), 5: answer(5)}) as server:
        result = run_load(
            schedule([3, 5, 3]), server.url, expected_generation=GENERATION, on_progress=seen.append
        )
    assert [record.id for record in result.records] == ["r0", "r1", "r2"]
    assert [record.output_tokens for record in result.records] == [3, 5, 3]
    assert {record.outcome for record in result.records} == {Outcome.COMPLETED}
    assert result.exact_prompts
    assert not result.aborted
    assert seen[0].num_requests == 3


def test_an_open_gap_stops_the_run_at_once() -> None:
    with ScriptedServer({2: FROZEN, 3: answer(3)}) as server:
        late = ScheduledRequest(id="late", at_s=FOREVER, prompt_tokens=32, max_tokens=3, prompt_seed=9)
        both = schedule([2, 3])
        plan = dataclasses.replace(both, requests=(*both.requests, late), duration_s=FOREVER)
        result = run_load(plan, server.url, abort_pause_s=0.3)
    assert result.aborted
    # It was due at the end of the run: whoever had waited for that would have sent it.
    assert result.records[2].outcome is Outcome.NEVER_SENT
    frozen_record = result.records[0]
    assert frozen_record.outcome is Outcome.UNFINISHED
    pause = worst_pause(frozen_record)
    assert pause is not None
    assert pause.is_bound
    assert pause.seconds >= 0.3


def test_a_pause_in_the_warm_up_does_not_stop_the_run() -> None:
    slow = Script((Write(0.0, text(), 1), Write(0.4, text(), 1), END))
    with ScriptedServer({2: slow}) as server:
        assert not run_load(schedule([2], measured=False), server.url, abort_pause_s=0.2).aborted


def test_what_is_running_when_the_drain_ends_is_unfinished() -> None:
    with ScriptedServer({2: FROZEN}) as server:
        result = run_load(schedule([2]), server.url, grace_s=1.0)
    assert result.records[0].outcome is Outcome.UNFINISHED
    assert result.records[0].ended_at_s >= 1.0


def test_a_planned_cancel_is_no_failure() -> None:
    with ScriptedServer({9: FROZEN}) as server:
        result = run_load(schedule([9], cancel_s=1.0), server.url)
    assert result.records[0].outcome is Outcome.CANCELLED
    assert len(result.records[0].events) == 1


REFUSING = Script(status=429, headers={"Retry-After": "0"})


def test_a_refused_request_is_sent_again_as_often_as_it_says() -> None:
    with ScriptedServer({1: REFUSING}) as server:
        result = run_load(schedule([1], retries=2), server.url)
        assert server.num_requests == 3
    record = result.records[0]
    assert record.outcome is Outcome.REFUSED
    assert record.resent_at_s > record.sent_at_s


def test_a_retry_is_counted_from_the_first_schedule() -> None:
    with ScriptedServer({1: Script(status=429, headers={"Retry-After": "0.3"})}) as server:
        result = run_load(schedule([1], retries=1), server.url)
    record = result.records[0]
    assert record.scheduled_at_s == 0.0
    assert record.resent_at_s - record.sent_at_s >= 0.3


def turns(tokens: list[int], think_s: float = 0.1, **fields: object) -> Schedule:
    plan = schedule(tokens, **fields)
    first, *later = plan.requests
    waiting = [
        dataclasses.replace(one, after=f"r{n}", think_s=think_s, session="s") for n, one in enumerate(later)
    ]
    return dataclasses.replace(plan, requests=(first, *waiting))


def test_a_later_turn_is_sent_when_its_user_has_read_and_thought() -> None:
    with ScriptedServer({3: answer(3, every_s=0.1), 5: answer(5), 4: answer(4)}) as server:
        records = run_load(turns([3, 5, 4]), server.url).records
    assert [record.outcome for record in records] == [Outcome.COMPLETED] * 3
    for before, one in itertools.pairwise(records):
        assert one.scheduled_at_s == pytest.approx(before.ended_at_s + 0.1)
        assert one.sent_at_s >= one.scheduled_at_s


@pytest.mark.parametrize(
    ("script", "outcome"),
    [(REFUSING, Outcome.REFUSED), (Script((Write(0.0, text(), 1),), is_cut=True), Outcome.FAILED)],
)
def test_a_user_goes_on_after_a_turn_that_failed(script: Script, outcome: Outcome) -> None:
    with ScriptedServer({2: script, 3: answer(3)}) as server:
        before, after = run_load(turns([2, 3]), server.url).records
    assert (before.outcome, after.outcome) == (outcome, Outcome.COMPLETED)
    assert after.scheduled_at_s == pytest.approx(before.ended_at_s + 0.1)


def test_a_user_who_left_goes_on_from_then() -> None:
    with ScriptedServer({9: FROZEN, 3: answer(3)}) as server:
        before, after = run_load(turns([9, 3], cancel_s=0.3), server.url).records
    assert before.outcome is Outcome.CANCELLED
    assert after.scheduled_at_s == pytest.approx(before.ended_at_s + 0.1)


def test_turns_that_never_came_are_accounted_for_and_no_fault_of_the_clients() -> None:
    with ScriptedServer({2: FROZEN, 3: answer(3), 4: answer(4)}) as server:
        result = run_load(turns([2, 3, 4]), server.url, grace_s=1.0)
    assert [record.outcome for record in result.records] == [
        Outcome.UNFINISHED, Outcome.NEVER_SENT, Outcome.NEVER_SENT,
    ]  # fmt: skip
    assert "had not ended" in (result.records[1].error or "")
    assert not any("never sent" in reason for reason in result.validity.reasons)


def test_the_result_says_how_many_lengths_were_as_planned() -> None:
    usage = event(usage_tokens=3, prompt_tokens=30)
    counted = Script((*[Write(0.0, text(), 1)] * 3, Write(0.0, event({}, finish="length") + usage + DONE)))
    with ScriptedServer({3: counted, 5: answer(5)}) as server:
        parity = run_load(schedule([3, 5]), server.url).parity
    assert (parity.prompts, parity.exact_prompts, parity.worst_prompt_error) == (1, 0, 2)
    assert (parity.outputs, parity.exact_outputs, parity.worst_output_error) == (2, 2, 0)


def test_a_server_that_is_not_there_is_one_line() -> None:
    with pytest.raises(TargetError, match=r"no answer from http://127\.0\.0\.1:9"):
        run_load(schedule([1]), "http://127.0.0.1:9")


def test_neither_a_relative_workdir_nor_locusts_own_settings_disturb_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCUST_RUN_TIME", "1")
    monkeypatch.setenv("LOCUST_USERS", "many")
    (tmp_path / "locust.conf").write_text("headless = nonsense\n")
    with ScriptedServer({1: answer(1)}) as server:
        result = run_load(schedule([1]), server.url, workdir=Path("work"))
    assert result.records[0].outcome is Outcome.COMPLETED


def test_a_broken_client_ends_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtests.run._LOCUSTFILE", tmp_path / "missing_locustfile.py")
    with ScriptedServer({1: answer(1)}) as server, pytest.raises(LoadRunError, match="missing_locustfile"):
        run_load(schedule([1]), server.url, workdir=tmp_path / "work")


def test_a_client_that_does_not_end_in_time_is_ended_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtests.run._SPARE_S", 1.0 - FOREVER)  # less than the schedule and its drain take
    with (
        ScriptedServer({2: FROZEN}) as server,
        pytest.raises(LoadRunError, match="had not ended after 1 s"),
    ):
        run_load(schedule([2]), server.url)


def test_a_client_that_somebody_kills_was_not_too_slow(tmp_path: Path) -> None:
    def kill(_: Progress) -> None:
        for line in _clients(tmp_path):
            os.kill(int(line.split()[0]), signal.SIGKILL)

    with (
        ScriptedServer({2: FROZEN}) as server,
        pytest.raises(LoadRunError, match=r"ended from outside \(SIGKILL\)"),
    ):
        run_load(schedule([2]), server.url, workdir=tmp_path, on_progress=kill)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_client_outlives_the_process_that_started_it(how: signal.Signals, tmp_path: Path) -> None:
    parent = tmp_path / "parent.py"
    with ScriptedServer({2: FROZEN}) as server:
        parent.write_text(
            textwrap.dedent(f"""
            import sys
            sys.path.insert(0, {str(Path(__file__).parent.parent.parent)!r})
            from pathlib import Path
            from loadtests.run import run_load
            from tests.loadtests.test_run import schedule
            def tell(progress): print(progress.num_sent, flush=True)
            run_load(schedule([2]), {server.url!r}, workdir=Path({str(tmp_path)!r}), on_progress=tell)
            """)
        )
        process = subprocess.Popen(
            [sys.executable, str(parent)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdout is not None
        process.stdout.readline()
        children = _clients(tmp_path)
        process.send_signal(how)
        process.wait()
        process.stdout.close()
        assert len(children) == 1
        until(lambda: not _clients(tmp_path))


def _clients(workdir: Path) -> list[str]:
    """Processes whose command line names the job in `workdir`."""
    listing = subprocess.run(
        ["ps", "-axww", "-o", "pid=,args="], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in listing.splitlines() if f"--job {workdir / 'job.json'}" in line]


def test_the_job_with_its_key_is_private_and_does_not_stay(tmp_path: Path) -> None:
    modes: list[int] = []

    def look(_: Progress) -> None:
        modes.append((tmp_path / "job.json").stat().st_mode & 0o077)

    with ScriptedServer({1: answer(1)}) as server:
        run_load(schedule([1]), Target(server.url, api_key="sesame"), workdir=tmp_path, on_progress=look)
    assert set(modes) == {0}
    assert not any("sesame" in path.read_text() for path in tmp_path.iterdir())
