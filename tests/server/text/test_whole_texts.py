"""Texts and pairs as an encoder reads them, cut as the `tokenizers` library cuts them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.weights.formats.model_folder import ModelFolder
from server.text.folder_tokenizer import load_folder_tokenizer
from server.text.tokenization.folder_metadata import read_folder_metadata
from server.text.tokenization.native_errors import TooManyTokens
from server.text.tokenizer import Tokenizer
from server.text.whole_texts import encode_beginning, encode_part, encode_text, join_pair
from tests.golden.tiny_llama import CONFIG
from tests.model_folders import write_json
from tests.server.text.tokenization.test_encoder_vocabularies import UNCASED, reference

WORDS = st.lists(st.sampled_from(["the", "unbelievable", "x", "thing", "q!"]), max_size=12).map(" ".join)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Of a folder, whose pipeline says what stands around and between texts."""
    path: Path = tmp_path_factory.mktemp("bert")
    made = reference(UNCASED, lowercase=True)
    made.enable_truncation(5)  # what the file says of it is no limit
    made.enable_padding(length=9)
    made.save(str(path / "tokenizer.json"))
    content = (path / "tokenizer.json").read_text(encoding="utf-8")
    decoder = '"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true}'
    (path / "tokenizer.json").write_text(content.replace('"decoder": null', decoder), encoding="utf-8")
    write_json(path / "config.json", CONFIG | {"vocab_size": len(UNCASED)})
    folder = ModelFolder(path)
    return load_folder_tokenizer(folder, read_folder_metadata(folder))


@given(text=WORDS, most=st.integers(2, 30))
def test_a_text_is_cut_as_the_library_does(tokenizer: Tokenizer, text: str, most: int) -> None:
    theirs = reference(UNCASED, lowercase=True)
    theirs.enable_truncation(most)
    assert encode_text(tokenizer, text, most, is_cut=True).token_ids == theirs.encode(text).ids


@given(first=WORDS, second=WORDS, most=st.integers(3, 40))
def test_a_pair_is_cut_as_the_library_does(tokenizer: Tokenizer, first: str, second: str, most: int) -> None:
    theirs = reference(UNCASED, lowercase=True)
    theirs.enable_truncation(most, strategy="longest_first")
    parts = [encode_part(tokenizer, text, most, is_cut=True) for text in (first, second)]
    pair = join_pair(tokenizer, *parts, most, is_cut=True)
    encoding = theirs.encode(first, second)
    assert pair.token_ids == encoding.ids
    assert [int(index >= pair.second_start) for index in range(len(pair.token_ids))] == encoding.type_ids


def test_only_the_beginning_of_a_long_text_is_read(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    encode = tokenizer.encode

    def noted(text: str, **options: bool) -> list[int]:
        seen.append(len(text))
        return encode(text, **options)

    monkeypatch.setattr(tokenizer, "encode", noted)
    assert len(encode_beginning(tokenizer, "the " * 100_000, 10)) == 10
    assert sum(seen) < 10_000


def test_a_text_that_is_far_too_long_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(TooManyTokens):
        encode_text(tokenizer, "the " * 1000, 10, is_cut=False)


def test_names_of_control_tokens_are_added_again(tokenizer: Tokenizer) -> None:
    """A text that begins with the name of the first token has it twice, as in the library."""
    theirs = reference(UNCASED, lowercase=True)
    assert encode_text(tokenizer, "[CLS] x [SEP]", 20, is_cut=False).token_ids == theirs.encode("[CLS] x [SEP]").ids
