import contextlib
import io
import json
from pathlib import Path

import pytest

from loadtests.traces.files import FORMATS_WRITTEN
from tuner.cli import main

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROWS = "".join(
    f"2024-05-10 00:00:{i:02d}.{i * i % 97:02d}0000+00:00,{100 * (i + 1)},{i}\n" for i in range(20)
)


def tuner(*arguments: object) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as caught,
    ):
        main([str(argument) for argument in arguments])
    return int(caught.value.code or 0), out.getvalue(), err.getvalue()


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE + ROWS)
    return path


def test_convert_writes_says_and_does_not_overwrite(azure: Path, tmp_path: Path) -> None:
    out = tmp_path / "own.jsonl"
    status, _, said = tuner("trace", "convert", azure, out, "--until", "10s", "--speed", "2")
    assert (status, said) == (0, f"{out}: 10 requests\n")
    assert len(out.read_text().splitlines()) == 11
    status, _, said = tuner("trace", "convert", azure, out)
    assert (status, said) == (1, f"tuner: {out} is there already; --force replaces it\n")
    assert tuner("trace", "convert", azure, out, "--force")[0] == 0


def test_convert_says_what_a_format_has_no_place_for(azure: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    tuner("trace", "convert", azure, own)
    status, _, said = tuner("trace", "convert", own, tmp_path / "s.csv", "--to", "servegen")
    assert status == 0
    assert "! 20 values of id left out: servegen has no place for it\n" in said


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("convert", "none.csv", "out"), "none.csv: cannot be read"),
        (("convert", "{azure}", "{out}", "--to", "word"), "no format 'word' to write; known are evenflow,"),
        (("convert", "{azure}", "{out}", "--keep", "0.5"), "no row names a user or session"),
        (("convert", "{azure}", "{out}", "--tokenizer", "none.json"), "none.json: no such tokenizer file"),
    ],
)
def test_what_cannot_be_done_is_one_line(azure: Path, tmp_path: Path, arguments, complaint) -> None:
    places = {"azure": azure, "out": tmp_path / "out"}
    status, _, said = tuner("trace", *[argument.format(**places) for argument in arguments])
    assert status == 1
    assert complaint in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("arguments", [("--keep", "0"), ("--keep", "2"), ("--speed", "0"), ("--until", "5")])
def test_arguments_that_make_no_sense_are_usage_errors(azure: Path, tmp_path: Path, arguments) -> None:
    assert tuner("trace", "convert", azure, tmp_path / "out", *arguments)[0] == 2


def test_a_stream_takes_some_time(azure: Path) -> None:
    assert tuner("trace", "show", azure, "--stream-rate", "0")[0] == 2


def test_help_names_every_format() -> None:
    status, out, _ = tuner("trace", "convert", "--help")
    assert status == 0
    assert all(name in out for name in FORMATS_WRITTEN)


def test_show_tells_what_is_there_and_what_is_wrong(azure: Path) -> None:
    status, out, _ = tuner("trace", "show", azure, "--context", "1500")
    assert status == 0
    assert "requests       20 in 19.7 s" in out
    assert "! 1 requests had no prompt or no answer: replay leaves them out\n" in out
    assert "! 6 requests need more than 1,500 tokens with their answers: " in out


def test_show_prints_one_object_for_programs(azure: Path) -> None:
    status, out, said = tuner("trace", "show", azure, "--json")
    assert (status, said) == (0, "")
    seen = json.loads(out)
    assert (seen["format"], seen["requests"]) == ("azure", 20)
    assert [finding["kind"] for finding in seen["findings"]] == ["failed"]
