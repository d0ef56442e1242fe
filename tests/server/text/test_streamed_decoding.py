"""Every kind of tokenizer, token by token: however an output is split, its pieces are the whole text."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.text.detokenizer import IncrementalDetokenizer
from server.text.tokenization.gguf_metadata import TokenType
from server.text.tokenizer import Tokenizer
from tests.server.support.gguf_files import metadata_of
from tests.server.support.mixed_lines import MIXED_LINES
from tests.server.text.tokenization.test_encoder_vocabularies import train_unigram
from tests.server.text.tokenization.test_sentencepiece_vocabulary import fields_of
from tests.server.text.tokenization.test_shielded_prompts import KINDS, tokenizer_of


@cache
def unigram() -> Tokenizer:
    original = train_unigram("nmt_nfkc")
    fields = fields_of(original) | {"tokenizer.ggml.model": "t5"}
    fields["tokenizer.ggml.token_type"][original.piece_to_id("<table>")] = int(TokenType.USER_DEFINED)
    return Tokenizer.from_gguf(metadata_of(Path(mkdtemp()), fields))


def tokenizer_named(kind: str) -> Tokenizer:
    return unigram() if kind == "Unigram GGUF" else tokenizer_of(kind)


def pieces_of(tokenizer: Tokenizer, token_ids: list[int], cuts: list[int]) -> list[str]:
    """The text in pieces, one for each stretch between `cuts`; half a character at the end is left out."""
    detokenizer = IncrementalDetokenizer(tokenizer)
    edges = [0, *sorted(cuts), len(token_ids)]
    return [detokenizer.decode(token_ids[begin:end]) for begin, end in pairwise(edges)]


@pytest.mark.parametrize("kind", [*KINDS, "Unigram GGUF"])
@settings(max_examples=40)
@given(data=st.data())
def test_any_split_of_any_tokens_gives_the_whole_text(kind: str, data: st.DataObject) -> None:
    tokenizer = tokenizer_named(kind)
    token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    cuts = data.draw(st.lists(st.integers(0, len(token_ids)), max_size=8))
    whole = tokenizer.decode(token_ids)
    text = "".join(pieces_of(tokenizer, token_ids, cuts))
    assert whole in (text, text + "\ufffd")
    assert "".join(pieces_of(tokenizer, token_ids, list(range(len(token_ids))))) == text


@pytest.mark.parametrize("kind", [*KINDS, "Unigram GGUF"])
def test_mixed_lines_come_token_by_token(kind: str) -> None:
    tokenizer = tokenizer_named(kind)
    for line in MIXED_LINES[::10]:
        token_ids = tokenizer.encode(line, add_special_tokens=False)
        pieces = pieces_of(tokenizer, token_ids, list(range(len(token_ids))))
        assert "".join(pieces) == tokenizer.decode(token_ids)
        # A piece never holds half a character.
        assert ("\ufffd" in "".join(pieces)) <= ("\ufffd" in line)
