"""WordPiece of a GGUF file gives the ids of the reference, whose pipeline is in `tokenizer.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Reference
from tokenizers import normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from server.text.tokenization.gguf_metadata import TokenType
from server.text.tokenizer import Tokenizer
from tests.server.support.gguf_files import metadata_of
from tests.server.support.mixed_lines import SCRIPTS, lines_of

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
UNCASED = [*SPECIAL, *"abcdefghijklmnopqrstuvwxyz0123456789.,!?-_", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"),
           "the", "##ing", "un", "##believ", "##able", "中", "文", "\u2581", "é", "##1"]  # fmt: skip
CASED = [*UNCASED, "The", "##A", "É"]


def reference(vocabulary: list[str], *, lowercase: bool) -> Reference:
    ids = {token: token_id for token_id, token in enumerate(vocabulary)}
    made = Reference(WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(list(SPECIAL))
    made.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    return made


def in_gguf(folder: Path, vocabulary: list[str]) -> Tokenizer:
    """As the ggml project's converter writes it."""

    def written(token: str) -> str:
        if token in SPECIAL:
            return token
        return token[2:] if token.startswith("##") else f"\u2581{token}"

    fields: dict[str, Any] = {
        "general.architecture": "bert",
        "bert.context_length": 512,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": [written(token) for token in vocabulary],
        "tokenizer.ggml.token_type": [
            int(TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL) for token in vocabulary
        ],
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
    }
    return Tokenizer.from_gguf(metadata_of(folder, fields))


@pytest.mark.parametrize(("vocabulary", "lowercase"), [(UNCASED, True), (CASED, False)], ids=["uncased", "cased"])
def test_ids_are_those_of_the_reference(tmp_path: Path, vocabulary: list[str], lowercase: bool) -> None:
    ours, theirs = in_gguf(tmp_path, vocabulary), reference(vocabulary, lowercase=lowercase)
    lines = [
        "The unbelievable thing.", "", " ", "[MASK] the [SEP]", "[CLS]x", "##ing", "中文the", "a" * 101, "É é e\u0301",
        "tab\tnew\nline\u00a0end\u200b", "\x00\ufffd", "\u2581", "a_b-c",
    ]  # fmt: skip
    for line in (*lines, *(line for script in SCRIPTS for line in lines_of(script))):
        assert ours.encode(line, add_special_tokens=False) == theirs.encode(line, add_special_tokens=False).ids, line


def test_what_stands_around_texts(tmp_path: Path) -> None:
    tokenizer = in_gguf(tmp_path, UNCASED)
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids, tokenizer.between_ids) == ([2], [3], (3,))
    assert (
        tokenizer.decode(tokenizer.encode("unbelievable thing", add_special_tokens=True)).split()[0] == "unbelievable"
    )
    assert tokenizer.eos_token_ids == ()
