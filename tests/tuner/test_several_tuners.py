"""Several `tuner` processes on one study, each with a server of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tuner.engines import (
    config_of,
    end_of,
    history,
    is_whole,
    quick_optimize,
    read_json,
    read_until,
    run_tuner,
    sim_engine,
    start_tuner,
)


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[tuple[str, str]]:
    with sim_engine(tmp_path / "a") as first, sim_engine(tmp_path / "b") as second:
        yield first, second


def arguments(url: str, *more: str) -> list[str]:
    return quick_optimize("--engine", url, "--study", "shared", "--json", *more)


def num_trials_on(url: str) -> int:
    return sum(change["why"].startswith("trial on traffic") for change in history(url))


def test_two_tuners_share_a_search_and_its_verdict(tmp_path: Path, urls: tuple[str, str]) -> None:
    before = [config_of(url) for url in urls]
    # Without predictions all trials are made; with them the search may be over before the helper has begun.
    effort = ("--simulate", "0", "--trials", "6")
    with start_tuner(tmp_path, *arguments(urls[0], *effort)) as leader:
        read_until(leader, "stall floor")
        code, _, err = run_tuner(tmp_path, *arguments(urls[0]))
        assert (code, len(err.splitlines())) == (1, 1)
        assert "another tuner works on" in err
        with start_tuner(tmp_path, *arguments(urls[1], *effort)) as helper:
            led, _ = end_of(leader)
            helped, err = end_of(helper)
    assert (leader.returncode, helper.returncode) == (0, 0), err
    assert read_json(led)["winner"] == read_json(helped)["winner"]
    assert num_trials_on(urls[1]) >= 1
    assert [config_of(url) for url in urls] == before
    shown = read_json(run_tuner(tmp_path, "show", "shared", "--json")[1])
    assert shown["status"] == "finished"
    assert {trial["status"] for trial in shown["trials"]} <= {"done", "aborted", "invalid", "suspect"}
    assert list(tmp_path.glob("*.lock")) == []


def test_a_helper_gives_the_verdict_when_the_leader_is_killed(tmp_path: Path, urls: tuple[str, str]) -> None:
    effort = ("--trials", "2")
    with start_tuner(tmp_path, *arguments(urls[0], *effort)) as leader:
        read_until(leader, "stall floor")
        with start_tuner(tmp_path, *arguments(urls[1], *effort)) as helper:
            read_until(helper, "helps with")
            read_until(leader, "live trials")
            leader.kill()
            out, err = end_of(helper)
    assert helper.returncode == 0, err
    assert "the tuner that led this study has ended" in err
    assert read_json(out)["confirmed"] is True
    assert is_whole(tmp_path / "evenflow.db")
    assert is_whole(tmp_path / "evenflow.optuna.db")
    trials = read_json(run_tuner(tmp_path, "show", "shared", "--json")[1])["trials"]
    assert [trial["status"] for trial in trials].count("lost") <= 1
