"""Words to the token sequences that are banned, with tokenizers of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sampling.host.params import InvalidParameter
from server.generation.bad_words import bad_word_ids
from server.text.text_model import TextModel
from server.text.tokenizer import Tokenizer
from tests.server.support.gguf_files import metadata_of
from tests.server.text.test_tokenizer import tiny
from tests.server.text.tokenization.test_sentencepiece_vocabulary import fields_of, train


@pytest.fixture(scope="module")
def sentencepiece_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_gguf(metadata_of(tmp_path_factory.mktemp("model"), fields_of(train())))


def pieces(tokenizer: Tokenizer, *words: str) -> list[list[str]]:
    return [[tokenizer.token_text(token_id) for token_id in ids] for ids in bad_word_ids(words, tokenizer)]


def test_with_and_without_a_space(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    assert pieces(tokenizer, "hello") == [["hello"], ["Ġ", "hello"]]
    assert pieces(tokenizer, " w", "w", "  w") == [["w"], ["Ġw"]]
    assert pieces(tokenizer, "\nw", " ") == [["Ċ", "w"], ["Ġ", "Ċ", "w"], ["Ġ"]]
    assert pieces(tokenizer, "<|im_end|>") == [["<|im_end|>"], ["Ġ", "<|im_end|>"]]


def test_a_word_is_written_as_within_a_text(sentencepiece_tokenizer: Tokenizer) -> None:
    """SentencePiece puts a space before a text; a word in the middle of one has none."""
    tokenizer = sentencepiece_tokenizer
    without, with_space = bad_word_ids(["boat"], tokenizer)
    assert tokenizer.decode(without) == "boat"
    assert tokenizer.decode(with_space) == " boat"
    assert list(with_space) == tokenizer.encode("boat", add_special_tokens=False)
    assert pieces(tokenizer, "</s>")[0] == ["</s>"]


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), min_size=1, max_size=3)


# Of "▁", as SentencePiece writes a space, it makes one. "<s>" is the name of a control token, which has no text.
@given(TEXTS.filter(lambda text: text != "<s>"))
def test_the_sequences_are_the_word_and_nothing_else(sentencepiece_tokenizer: Tokenizer, word: str) -> None:
    for token_ids in bad_word_ids([word], sentencepiece_tokenizer):
        assert sentencepiece_tokenizer.decode(token_ids) in (word.lstrip(" "), " " + word.lstrip(" "), word)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("tide", "(tide"),
        ("tide", "the tide"),
        ("tide", "tide"),
        (" tide", "the\ntide"),
        ("12", "in 12"),
        ("12", "x12"),
        ("\n\n", "end.\n\n"),
        ("…", "and so…"),
        ("é", "caf é"),
        (".", "the end."),
        ("Mr.", "Mr."),
    ],
)
def test_they_are_found_in_texts_of_the_default_model(text_model: TextModel, word: str, text: str) -> None:
    token_ids = tuple(text_model.tokenizer.encode(text, add_special_tokens=False))
    assert any(token_ids[-len(ids) :] == ids for ids in bad_word_ids([word], text_model.tokenizer))


def test_what_is_refused(tmp_path: Path) -> None:
    tokenizer = tiny(tmp_path)
    with pytest.raises(InvalidParameter, match='bad_words has "xxxxxxxxxxxxxxxx", which makes 17 tokens') as refused:
        bad_word_ids(["x" * 16], tokenizer)
    assert refused.value.param == "bad_words"
    with pytest.raises(InvalidParameter, match="129 entries, which make 258 sequences of tokens"):
        bad_word_ids([f"{number:03}" for number in range(129)], tokenizer)
    assert len(bad_word_ids([f"{number:03}" for number in range(128)], tokenizer)) == 256
