"""Gemma 4's kind of vocabulary in a GGUF file against the pipeline of Gemma's own `tokenizer.json`."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Pipeline

from engine.interface.errors import ModelError
from server.text.tokenization.gguf_metadata import TokenType, read_gguf_metadata
from server.text.tokenizer import Tokenizer
from tests.server.support.gguf_files import metadata_of
from tests.server.support.mixed_lines import MIXED_LINES, lines_of

SPECIAL = {
    "<pad>": TokenType.CONTROL, "<eos>": TokenType.CONTROL, "<bos>": TokenType.CONTROL, "<unk>": TokenType.CONTROL,
    "<|turn>": TokenType.CONTROL, "<turn|>": TokenType.CONTROL, "<|tool_response>": TokenType.USER_DEFINED,
    "<|channel>": TokenType.USER_DEFINED, "<table>": TokenType.USER_DEFINED,
}  # fmt: skip
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = [*"▁helo!xé日\n1", "he", "ll", "llo", "hello", "▁hello", "▁▁", "\n\n", "▁x", "▁!"]
MERGES = ["h e", "l l", "ll o", "he llo", "▁ hello", "▁ ▁", "\n \n", "▁ x", "▁ !"]
TOKENS = [*SPECIAL, *BYTES, *PIECES]
FIELDS: dict[str, Any] = {
    "general.architecture": "gemma4",
    "gemma4.context_length": 512,
    "tokenizer.ggml.model": "gemma4",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [
        *map(int, SPECIAL.values()), *[int(TokenType.BYTE)] * 256, *[int(TokenType.NORMAL)] * len(PIECES),
    ],
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 2,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.ggml.unknown_token_id": 3,
    "tokenizer.ggml.add_space_prefix": False,
}  # fmt: skip
TEXTS = ["hello hello", "  hello\n\n\nxx! é日ж 🙂", "", " ", "\n", "<table> x<tab", "1\r\n1", *MIXED_LINES[:40]]


def published() -> Pipeline:
    """The pipeline as Gemma's `tokenizer.json` states it."""
    added = [
        {"id": index, "content": name, "special": kind == TokenType.CONTROL, "normalized": False,
         "single_word": False, "lstrip": False, "rstrip": False}
        for index, (name, kind) in enumerate(SPECIAL.items())
    ]  # fmt: skip
    model = {
        "type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
        "vocab": {token: index for index, token in enumerate(TOKENS)}, "merges": [merge.split(" ") for merge in MERGES],
    }  # fmt: skip
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    content = {
        "version": "1.0", "added_tokens": added, "model": model, "pre_tokenizer": split,
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    }  # fmt: skip
    return Pipeline.from_str(json.dumps(content))


def test_texts_become_the_tokens_of_the_published_pipeline(tmp_path: Path) -> None:
    tokenizer, pipeline = Tokenizer.from_gguf(metadata_of(tmp_path, FIELDS)), published()
    for text in TEXTS:
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        assert token_ids == pipeline.encode(text, add_special_tokens=False).ids, text
        assert tokenizer.decode(token_ids) == text.replace("▁", " ")


def test_the_first_token_and_those_that_end_an_output(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(metadata_of(tmp_path, FIELDS | {"tokenizer.ggml.add_bos_token": False}))
    assert tokenizer.encode("x", add_special_tokens=True) == [2, TOKENS.index("x")]
    assert [tokenizer.tokens[token_id] for token_id in tokenizer.eos_token_ids] == [
        "<eos>",
        "<turn|>",
        "<|tool_response>",
    ]


def test_a_message_writes_no_control_token(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(metadata_of(tmp_path, FIELDS))
    names = "<|turn><turn|><|channel>"
    assert tokenizer.encode(names, add_special_tokens=False) == [4, 5, 7]
    token_ids = tokenizer.encode_parts([5, names])[1:]
    assert token_ids[0] == 5
    assert not set(token_ids[1:]) & set(range(len(SPECIAL)))
    assert tokenizer.decode(token_ids) == names


@pytest.mark.parametrize("pre", ["gemma4", "granite-embed-multi-311m", "sarvam-moe"])
def test_files_that_call_it_a_pre_tokenizer(tmp_path: Path, pre: str) -> None:
    fields = FIELDS | {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre}
    tokenizer = Tokenizer.from_gguf(metadata_of(tmp_path, fields))
    for text in TEXTS:
        token_ids = tokenizer.encode(text, add_special_tokens=True)
        assert token_ids == published().encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("merges", ["h x"], "do not fit the vocabulary"),
        ("merges", ["hello"], "is not two tokens"),
        ("tokens", ["<0xZZ>" if token == "<0x41>" else token for token in TOKENS], "<0xZZ>"),
    ],
)
def test_damaged_vocabularies_are_refused(tmp_path: Path, field: str, value: list[str], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Tokenizer.from_gguf(metadata_of(tmp_path, FIELDS | {f"tokenizer.ggml.{field}": value}))


@pytest.mark.skipif(os.environ.get("EAGRE_FULL") != "1", reason="reads half a million merges")
def test_the_real_vocabulary_with_merges_equals_sentencepiece(gemma_path: Path) -> None:
    """Of SentencePiece's own tokens and scores, merges are what joins two tokens to one, the best score first."""
    golden = json.loads((Path(__file__).parents[3] / "golden" / "gemma3_tokenizer.json").read_bytes())
    stored = read_gguf_metadata(gemma_path)
    ids = {token: token_id for token_id, token in enumerate(stored.tokens)}
    merges = [
        (token_id, ids[token[:cut]], ids[token[cut:]], f"{token[:cut]} {token[cut:]}")
        for token, token_id in ids.items()
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids and stored.token_types[token_id] == TokenType.NORMAL
    ]
    merges.sort(key=lambda merge: (-stored.scores[merge[0]], merge[1], merge[2]))
    tokenizer = Tokenizer.from_gguf(
        dataclasses.replace(stored, tokenizer_model="gemma4", merges=tuple(merge[3] for merge in merges))
    )
    sentencepiece = Tokenizer.from_gguf(stored)
    # Its file writes runs of spaces as such and not as marks, so that lines with marks of their own differ.
    lines = [line for script in golden["scripts"] for line in lines_of(script["script"]) if "▁" not in line]
    assert len(lines) > 900
    for line in lines:
        ids_of_line = sentencepiece.encode(line, add_special_tokens=False)
        assert tokenizer.encode(line, add_special_tokens=False) == ids_of_line, line
