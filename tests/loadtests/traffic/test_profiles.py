from pathlib import Path
from typing import Any

import pytest

from loadtests.errors import ProfileError
from loadtests.traffic.profile import Length
from loadtests.traffic.profile_fields import parse_profile
from loadtests.traffic.profiles import load_profile, profile_names


def values(**changes: Any) -> dict[str, Any]:
    group = {"prompt_tokens": 10, "max_tokens": 5, "arrivals": {"process": "at", "times": [0, 1]}}
    return {"name": "p", "duration": 10, "groups": {"g": group}} | changes


def group(**changes: Any) -> dict[str, Any]:
    return values(groups={"g": values()["groups"]["g"] | changes})


@pytest.mark.parametrize("name", profile_names())
def test_every_named_profile_loads(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.description
    assert profile.trace or any(not group.warm_up for group in profile.groups)


def test_the_usual_profiles_are_there() -> None:
    usual = {"ambush", "single", "chat", "burst", "rag", "agents", "lunch", "overload"}
    assert usual | {"trace-azure", "trace-agents", "trace-mooncake", "trace-servegen"} == set(profile_names())


def test_a_profile_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "duration: 3\ngroups: {g: {prompt_tokens: auto, max_tokens: 2, arrivals: {process: lanes, count: 1}}}"
    )
    profile = load_profile(str(path))
    assert profile.name == "mine"
    assert profile.groups[0].prompt_tokens == Length("auto")


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (values(duration="long"), "duration must be"),
        (values(duration=0), "duration must be"),
        (values(duration=float("nan")), "duration must be"),
        (values(time_unit="days"), "time_unit must be one of s, long_prefill"),
        (values(mood="good"), "unknown field mood"),
        (values(groups={}), "groups must be"),
        (values(groups={"g": 3}), "groups.g must be"),
        (values(long_prompt_tokens=0), "long_prompt_tokens must be"),
        (values(long_prompt_tokens={"uniform": [1, 2]}), "long_prompt_tokens must be"),
        (values(grace_s=-1), "grace_s must be"),
        (group(prompt_tokens=0), "groups.g.prompt_tokens must be"),
        (group(prompt_tokens=True), "groups.g.prompt_tokens must be"),
        (group(prompt_tokens={"uniform": [9, 3]}), "groups.g.prompt_tokens.uniform must be"),
        (group(prompt_tokens={"uniform": [1.5, 3]}), "groups.g.prompt_tokens.uniform must be"),
        (
            group(prompt_tokens={"lognormal": {"median": 9, "sigma": 1, "min": 20, "max": 10}}),
            "groups.g.prompt_tokens.lognormal.max must be a whole number from min (20)",
        ),
        (group(prompt_tokens={"zipf": 2}), "groups.g.prompt_tokens must be"),
        (
            group(prompt_tokens={"lognormal": {"median": 1e300, "sigma": 1}}),
            "groups.g.prompt_tokens.lognormal.median must be a number up to 1,048,576",
        ),
        (
            group(prompt_tokens={"lognormal": {"median": 9, "sigma": 1e9}}),
            "groups.g.prompt_tokens.lognormal.sigma must be a number up to 10",
        ),
        (
            group(prompt_tokens={"lognormal": {"median": 5}}),
            "groups.g.prompt_tokens.lognormal.sigma is missing",
        ),
        (group(max_tokens={"auto": 0}), "groups.g.max_tokens.auto must be"),
        (group(arrivals={"process": "at", "times": []}), "groups.g.arrivals.times must be"),
        (group(arrivals={"process": "at", "times": [-1]}), "groups.g.arrivals.times must be"),
        (group(arrivals={"process": "at", "times": ["x"]}), "groups.g.arrivals.times must be"),
        (group(arrivals={"process": "at", "times": [1, 10]}), "groups.g.arrivals.times must be before"),
        (
            group(arrivals={"process": "at", "times": [9], "jitter": 1}),
            "groups.g.arrivals.times must be before the end of duration (10), jitter included",
        ),
        (group(warm_up=True), "groups.g.arrivals.times must be before the end of warm_up (0)"),
        (
            group(warm_up=True, arrivals={"process": "lanes", "count": 1}),
            "warm_up must be above 0 for the group g",
        ),
        (group(arrivals={"process": "weekly"}), "groups.g.arrivals.process must be one of"),
        (group(arrivals={"process": "poisson"}), "groups.g.arrivals.rate must be"),
        (group(arrivals={"process": "poisson", "rate": 1, "load": 1}), "groups.g.arrivals.rate must be"),
        (group(arrivals={"process": "burst", "count": 2}), "groups.g.arrivals.every is missing"),
        (group(arrivals=None), "groups.g.arrivals must be"),
        (group(warm_up="yes"), "groups.g.warm_up must be"),
        (group(turns=0), "groups.g.turns must be"),
        (group(retries=-1), "groups.g.retries must be"),
        (group(**{"class": "vip"}), "groups.g.class must be one of"),
        (values(classes={"vip": {}}), "groups.g.class is missing"),
        (values(classes={"vip": {"ttft": "soon"}}), "classes.vip.ttft must be a number from 0 or a duration"),
        (values(classes={"vip": {"pause": 2}}), "classes.vip.pause must be a duration"),
        (values(classes=3), "classes must be"),
        (values(trace={"file": "x"}), "unknown field groups"),
        ({"duration": 1, "warm_up": 2, "trace": {"file": "x"}}, "warm_up must be left out where a trace"),
        ({"duration": 1, "trace": {}}, "trace.file is missing"),
        ({"duration": 1, "trace": {"file": "x", "mode": "closed"}}, "trace.mode must be one of"),
        ({"duration": 1, "trace": {"file": "x", "load": 0}}, "trace.load must be"),
        ([], "the file must be a mapping"),
    ],
)
def test_a_bad_profile_is_one_line_with_file_and_field(bad: Any, field: str) -> None:
    with pytest.raises(ProfileError) as caught:
        parse_profile(bad, "x.yaml")
    message = str(caught.value)
    assert message.startswith("profile x.yaml: ")
    assert field in message
    assert "\n" not in message


def test_a_missing_profile_says_which_there_are() -> None:
    with pytest.raises(ProfileError, match="ambush"):
        load_profile("ambsh")


def test_an_unreadable_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="No such file"):
        load_profile(str(tmp_path / "none.yaml"))
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1,\nb: 2")
    with pytest.raises(ProfileError, match="line 2 is not YAML") as caught:
        load_profile(str(broken))
    assert "\n" not in str(caught.value)
