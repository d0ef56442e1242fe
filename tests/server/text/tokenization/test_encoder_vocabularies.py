"""Vocabularies of encoders in GGUF files give the ids of the reference, whose pipeline is in `tokenizer.json`."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import AddedToken, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Reference
from tokenizers.models import Unigram, WordPiece

from engine.interface.errors import ModelError
from server.text.tokenization.gguf_metadata import TokenType
from server.text.tokenizer import Tokenizer
from tests.server.support.gguf_files import metadata_of
from tests.server.support.mixed_lines import MIXED_LINES, SCRIPTS, lines_of
from tests.server.text.tokenization.test_sentencepiece_vocabulary import SENTENCES, fields_of

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


def in_gguf(folder: Path, vocabulary: list[str], changes: Mapping[str, int] | None = None) -> Tokenizer:
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
        **(changes or {}),
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


@pytest.mark.parametrize(
    ("vocabulary", "cls_id", "sep_id"),
    [(["[CLS]", "[UNK]", "[PAD]", "[SEP]", "the"], 0, 3), (["[SEP]", "[UNK]", "[CLS]", "[PAD]", "the"], 2, 0)],
)
def test_the_first_token_of_a_vocabulary_may_stand_around_texts(
    tmp_path: Path, vocabulary: list[str], cls_id: int, sep_id: int
) -> None:
    """Whatever else the file says of the beginnings and ends of texts."""
    others = dict.fromkeys(("bos", "eos"), 4)
    roles = {"cls": cls_id, "seperator": sep_id, **others}
    tokenizer = in_gguf(
        tmp_path, vocabulary, {f"tokenizer.ggml.{role}_token_id": token_id for role, token_id in roles.items()}
    )
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids, tokenizer.between_ids) == ([cls_id], [sep_id], (sep_id,))


def train_unigram(normalization: str) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*SENTENCES * 5, *MIXED_LINES[:200]]),
        model_writer=model,
        vocab_size=600,
        model_type="unigram",
        character_coverage=0.98,
        normalization_rule_name=normalization,
        user_defined_symbols=["<table>"],
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def charsmap_of(proto: bytes) -> list[int]:
    """The bytes of `normalizer_spec.precompiled_charsmap`, which is field 2 of field 3."""

    def field(data: bytes, wanted: int) -> bytes:
        position = 0
        while position < len(data):
            tag, position = read_varint(data, position)
            length, position = read_varint(data, position) if tag & 7 == 2 else ({0: 1, 5: 4}[tag & 7], position)
            if tag >> 3 == wanted:
                return data[position : position + length]
            position += length
        return b""

    return list(field(field(proto, 3), 2))


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[position] & 0x7F) << shift
        shift, position = shift + 7, position + 1
        if data[position - 1] < 0x80:
            return value, position


def xlm_roberta(original: sentencepiece.SentencePieceProcessor, charsmap: bytes) -> Reference:
    """The pipeline that `tokenizer.json` of XLM-RoBERTa and its kin has."""
    pieces = [(original.id_to_piece(i), original.get_score(i)) for i in range(original.vocab_size())]
    made = Reference(Unigram([*pieces, ("<mask>", 0.0)], original.unk_id()))
    if charsmap:
        made.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Replace("  ", " ")])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    control = [original.id_to_piece(i) for i in range(original.vocab_size()) if original.is_control(i)]
    names = [*control, original.id_to_piece(original.unk_id()), "<table>"]
    made.add_special_tokens([*names, AddedToken("<mask>", lstrip=True, normalized=False)])
    return made


@pytest.mark.parametrize("normalization", ["identity", "nmt_nfkc"])
def test_unigram_models_with_their_normalization(tmp_path: Path, normalization: str) -> None:
    original = train_unigram(normalization)
    fields = fields_of(original)
    del fields["tokenizer.ggml.bos_token_id"]
    fields["tokenizer.ggml.token_type"][original.piece_to_id("<table>")] = int(TokenType.USER_DEFINED)
    fields |= {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
    }
    if charsmap := charsmap_of(original.serialized_model_proto()):
        fields["tokenizer.ggml.precompiled_charsmap"] = charsmap
    assert bool(charsmap) is (normalization == "nmt_nfkc")
    fields["tokenizer.ggml.mask_token_id"] = len(fields["tokenizer.ggml.tokens"])
    for key, value in (("tokens", "[PAD600]"), ("scores", -10_000.0), ("token_type", int(TokenType.UNUSED))):
        fields[f"tokenizer.ggml.{key}"] = [*fields[f"tokenizer.ggml.{key}"], value]
    tokenizer = Tokenizer.from_gguf(metadata_of(tmp_path, fields))
    reference = xlm_roberta(original, bytes(charsmap))
    odd = [
        "x \x85y",
        "<unk>",
        "a<mask> b",
        "</s> a",
        "é\u200d",
        ". . . .......",
        "\u3000\u05af",
        "a \ufeff b",
        "<table>a",
    ]
    for line in [*MIXED_LINES, *odd]:
        assert tokenizer.encode(line, add_special_tokens=False) == reference.encode(line, add_special_tokens=False).ids
    for line in SENTENCES:
        assert tokenizer.encode(line, add_special_tokens=False) == original.encode(line)
    assert tokenizer.encode("the", add_special_tokens=True) == [*original.encode("the"), original.eos_id()]


# A trie of 256 units, of which one alone, of characters from U+F000 on, is followed by anything: far behind the end.
DAMAGED_END = struct.pack("<257I", 4 * 256, *(unit == 0xEF and 0xEF | 5000 << 10 for unit in range(256)))


@pytest.mark.parametrize("charsmap", [[1], [0xFF] * 64, [300], [8, 0, 0, 0, *range(64)], list(DAMAGED_END)])
def test_a_damaged_normalization_is_refused(tmp_path: Path, charsmap: list[int]) -> None:
    fields = fields_of(train_unigram("identity")) | {"tokenizer.ggml.model": "t5"}
    fields["tokenizer.ggml.precompiled_charsmap"] = charsmap
    with pytest.raises(ModelError, match=r"library does not accept|charsmap holds something that is not a byte"):
        Tokenizer.from_gguf(metadata_of(tmp_path, fields))
