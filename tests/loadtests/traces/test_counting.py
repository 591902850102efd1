import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from engine.core.errors import TraceError
from loadtests.traces.counting import open_counter
from loadtests.traces.files import open_trace
from loadtests.traces.reading import Reading
from tests.engine.fakes import FakeBackend
from tests.server.live import Live

MESSAGES = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "two words"}]},
    {"role": "assistant", "content": None},
]


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(models.WordLevel({"unknown": 0}, unk_token="unknown"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_a_tokenizer_file_counts_texts_and_the_contents_of_messages(tokenizer_file: Path) -> None:
    for place in (tokenizer_file, tokenizer_file.parent):
        counter = open_counter(str(place))
        assert counter.text("one two three") == 3
        assert counter.text("a half \ud83d surrogate") >= 3
        assert counter.messages(MESSAGES) == 4


def test_an_engine_counts_with_its_own_tokenizer_and_template() -> None:
    backend = FakeBackend()
    with Live(backend) as server:
        counter = open_counter(server.url)
        backend.gate.open()
        assert counter.text("") == 0
        short, longer = counter.text("abc"), counter.text("abc abc abc")
        assert 0 < short < longer
        assert counter.messages(MESSAGES) > 0


def test_a_counter_that_cannot_count_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such tokenizer file"):
        open_counter(str(tmp_path / "none.json"))
    (tmp_path / "odd.json").write_text("{}")
    with pytest.raises(TraceError, match=r"odd\.json: not a tokenizer\.json"):
        open_counter(str(tmp_path / "odd.json"))
    with pytest.raises(TraceError, match=r"no answer from http://127\.0\.0\.1:9"):
        open_counter("http://127.0.0.1:9")


def test_a_trace_of_texts_reads_with_a_tokenizer(tokenizer_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "texts"
    path.write_text(json.dumps({"timestamp": 0, "messages": MESSAGES, "output_length": 5}) + "\n")
    (row,) = open_trace(path, Reading(counter=open_counter(str(tokenizer_file)))).rows
    assert row.prompt_tokens == 4
