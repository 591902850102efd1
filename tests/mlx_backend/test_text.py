from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast, tokenization_utils_base

from engine.mlx_backend.text import REPLACEMENT, Tokenizer
from tests.mlx_backend.tiny_models import make_tiny_model

any_text = st.text(max_size=60)
small_alphabet = st.text(alphabet="ab", max_size=40)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_directory(make_tiny_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def byte_fallback() -> Tokenizer:
    """A vocabulary as sentencepiece makes them: pieces with a space mark, bytes for everything else."""
    pieces = ["▁", "a", "b", "▁a", "▁hello", "é", "hello"]
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    vocab |= {piece: 257 + index for index, piece in enumerate(pieces)}
    backend = Backend(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))


def streamed(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    stream = tokenizer.detokenizer()
    return [*(stream.push(token) for token in tokens), stream.finish()]


@given(text=any_text)
def test_streamed_text_is_the_decoded_text(byte_level: Tokenizer, text: str) -> None:
    tokens = byte_level.encode(text)
    assert "".join(streamed(byte_level, tokens)) == byte_level.decode(tokens) == text


@given(tokens=st.lists(st.integers(0, 299), max_size=40))
def test_any_tokens_stream_as_they_decode(byte_level: Tokenizer, tokens: list[int]) -> None:
    assert "".join(streamed(byte_level, tokens)) == byte_level.decode(tokens)


@given(text=any_text.filter(lambda text: REPLACEMENT not in text))
def test_no_piece_holds_half_a_character(byte_level: Tokenizer, text: str) -> None:
    assert all(REPLACEMENT not in piece for piece in streamed(byte_level, byte_level.encode(text)))


@given(text=any_text.filter(lambda text: REPLACEMENT not in text))
def test_byte_fallback_streams_as_it_decodes(byte_fallback: Tokenizer, text: str) -> None:
    tokens = byte_fallback.encode(text)
    pieces = streamed(byte_fallback, tokens)
    assert "".join(pieces) == byte_fallback.decode(tokens)
    assert all(REPLACEMENT not in piece for piece in pieces)


def test_spaces_between_pieces_survive(byte_fallback: Tokenizer) -> None:
    hello, a = 257 + 4, 257 + 3
    assert streamed(byte_fallback, [hello, a, hello]) == ["hello", " a", " hello", ""]


def test_an_incomplete_character_at_the_end_is_replaced(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode("né")[:-1]
    assert streamed(byte_level, tokens) == ["n", "", REPLACEMENT]


def test_special_tokens_are_not_text(byte_level: Tokenizer) -> None:
    assert streamed(byte_level, [256, *byte_level.encode("hi"), 257]) == ["", "h", "i", "", ""]


def test_an_answer_ends_at_the_tokens_of_config_and_tokenizer(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_directory(make_tiny_model(tmp_path), eos_tokens=(7,))
    assert tokenizer.eos_tokens == {7, 256}


def test_a_conversation_ends_where_the_answer_begins(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode_chat([{"role": "user", "content": "hi"}])
    assert tokens == [258, *byte_level.encode("hi"), 256, 259]


def test_a_model_without_chat_template_says_so(byte_fallback: Tokenizer) -> None:
    with pytest.raises(ValueError, match="no chat template"):
        byte_fallback.encode_chat([{"role": "user", "content": "hi"}])


CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "Because."},
    {"role": "user", "content": "And then?"},
]


def test_boundaries_are_where_the_first_and_the_last_message_end(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode_chat(CHAT)
    first, last = byte_level.boundaries(CHAT, tokens)
    assert tokens[:first] == byte_level.encode("<|system|>Be brief.<|end|>")
    assert tokens[last:] == byte_level.encode("<|assistant|>")


def test_a_conversation_that_goes_on_begins_with_the_boundary_of_the_one_before(
    byte_level: Tokenizer,
) -> None:
    before, after = byte_level.encode_chat(CHAT[:2]), byte_level.encode_chat(CHAT)
    _, last = byte_level.boundaries(CHAT[:2], before)
    assert before[:last] == after[:last]


def test_one_message_has_one_boundary(byte_level: Tokenizer) -> None:
    tokens = byte_level.encode_chat(CHAT[:1])
    assert byte_level.boundaries(CHAT[:1], tokens) == (len(tokens) - 1,)


def test_a_template_that_cannot_be_rendered_in_part_has_no_boundaries(byte_fallback: Tokenizer) -> None:
    assert byte_fallback.boundaries(CHAT, [1, 2, 3]) == ()


def test_a_prompt_beyond_the_context_is_counted_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(tokenization_utils_base.logger, "warning", said.append)
    theirs = AutoTokenizer.from_pretrained(str(make_tiny_model(tmp_path / "model")), model_max_length=4)
    tokenizer = Tokenizer(theirs)
    assert len(tokenizer.encode("far too long")) > 4
    assert len(tokenizer.encode_chat([{"role": "user", "content": "far too long"}])) > 4
    assert said == []
