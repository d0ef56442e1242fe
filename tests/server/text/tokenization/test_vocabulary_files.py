"""Folders without a `tokenizer.json`: each file against a plain program, or against the file that it stands for."""

from __future__ import annotations

import base64
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers.pre_tokenizers import ByteLevel

from engine.interface.errors import ModelError
from engine.weights.formats.model_folder import ModelFolder
from server.text.folder_tokenizer import load_folder_tokenizer
from server.text.tokenization import vocabulary_files
from server.text.tokenization.byte_alphabet import byte_of_character
from server.text.tokenization.folder_metadata import read_folder_metadata
from server.text.tokenization.pre_tokenizers import SCHEMES
from server.text.tokenizer import Tokenizer
from tests.golden.tiny_llama import CONFIG
from tests.model_folders import write_json
from tests.server.support.mixed_lines import MIXED_LINES

PIECES = ["he", "ll", "hell", "llo", "hello", " h", " hello", "é", "日本", "ab", "bc", "abc", "  ", "\n\n", "12", "123"]
TOKENS = [*(bytes([byte]) for byte in range(256)), *(piece.encode() for piece in PIECES)]
LINES = ["hello hello hell", "abcbcab  hello\n\n123 日本é 12345", "", *MIXED_LINES[:60]]
ADDED = {
    "272": {"content": "[BOS]", "special": True}, "273": {"content": "[EOS]", "special": True},
    "274": {"content": "<|im_end|>", "special": True}, "280": {"content": "<plain>", "special": False},
}  # fmt: skip


def load(folder: Path) -> Tokenizer:
    opened = ModelFolder(folder)
    return load_folder_tokenizer(opened, read_folder_metadata(opened))


def write(folder: Path, files: dict[str, Any], vocab_size: int = 300, **tokenizer_config: Any) -> Path:
    write_json(folder / "config.json", CONFIG | {"vocab_size": vocab_size, "bos_token_id": 1, "eos_token_id": 2})
    write_json(folder / "tokenizer_config.json", tokenizer_config)
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def joined_by_rank(piece: bytes, ranks: dict[bytes, int]) -> list[int]:
    """tiktoken's rule as it is published: the leftmost pair of the lowest rank is joined, until there is none."""
    if piece in ranks:
        return [ranks[piece]]
    parts = [piece[index : index + 1] for index in range(len(piece))]
    while True:
        sums = [left + right for left, right in pairwise(parts)]
        found = [(ranks[both], index) for index, both in enumerate(sums) if both in ranks]
        if not found:
            return [ranks[part] for part in parts]
        index = min(found)[1]
        parts[index : index + 2] = [parts[index] + parts[index + 1]]


def expected(text: str, scheme: str, ranks: dict[bytes, int]) -> list[int]:
    characters = {character: byte for byte, character in enumerate_alphabet().items()}
    pieces = [piece for piece, _ in SCHEMES[scheme].pre_tokenizer().pre_tokenize_str(text)]
    as_bytes = [bytes(characters[character] for character in piece) for piece in pieces]
    return [token_id for piece in as_bytes for token_id in joined_by_rank(piece, ranks)]


def enumerate_alphabet() -> dict[int, str]:
    assert set(byte_of_character()) == set(ByteLevel.alphabet())
    return {byte: character for character, byte in byte_of_character().items()}


def tiktoken_file(tokens: list[bytes]) -> str:
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))


def test_tiktoken_files_of_kimi(tmp_path: Path) -> None:
    config = {"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]"}
    folder = write(tmp_path, {"tiktoken.model": tiktoken_file(TOKENS)}, **config, added_tokens_decoder=ADDED)
    tokenizer, ranks = load(folder), {token: rank for rank, token in enumerate(TOKENS)}
    for line in LINES:
        token_ids = tokenizer.encode(line, add_special_tokens=True)
        assert token_ids == expected(line, "kimi-k2", ranks), line
        assert tokenizer.decode(token_ids) == line
    assert tokenizer.encode("ab<|im_end|>[EOS]<plain>", add_special_tokens=False) == [265, 274, 273, 280]
    assert set(tokenizer.encode_parts(["<|im_end|>[EOS]"])).isdisjoint({273, 274})
    assert tokenizer.eos_token_ids == (2, 273, 274)


def test_added_tokens_beyond_the_matrices_are_left_out(tmp_path: Path) -> None:
    added = ADDED | {"16000000": {"content": "<far>", "special": True}}
    files = {"tiktoken.model": tiktoken_file(TOKENS)}
    tokenizer = load(write(tmp_path, files, tokenizer_class="TikTokenTokenizer", added_tokens_decoder=added))
    assert tokenizer.vocab_size == 300
    assert "<plain>" in tokenizer.tokens
    assert "<far>" not in tokenizer.tokens


def test_random_vocabularies_of_ranks(tmp_path: Path) -> None:
    chance = random.Random(0)
    for number in range(4):
        pieces = {bytes(chance.choices(b"abc ", k=chance.randrange(2, 7))) for _ in range(40)}
        tokens = [
            *(bytes([byte]) for byte in range(256)),
            *sorted(pieces, key=lambda piece: (len(piece), chance.random())),
        ]
        (tmp_path / str(number)).mkdir()
        folder = write(
            tmp_path / str(number), {"tiktoken.model": tiktoken_file(tokens)}, tokenizer_class="TikTokenTokenizer"
        )
        tokenizer, ranks = load(folder), {token: rank for rank, token in enumerate(tokens)}
        for _ in range(50):
            text = "".join(chance.choices("abc ", k=chance.randrange(1, 40)))
            assert tokenizer.encode(text, add_special_tokens=False) == expected(text, "kimi-k2", ranks), text


def sizes(pattern: str, vocab_size: int, num_special: int) -> dict[str, Any]:
    return {"pattern": pattern, "default_vocab_size": vocab_size, "default_num_special_tokens": num_special}


def tekken(**changed: Any) -> dict[str, Any]:
    config = {
        "pattern": SCHEMES["tekken"].patterns[0],
        "default_vocab_size": 32 + len(TOKENS),
        "default_num_special_tokens": 32,
    }
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(token).decode()} for rank, token in enumerate(TOKENS)]
    return {"config": config, "vocab": [*vocab, {"rank": 9999, "token_bytes": "AAAA"}]} | changed


@pytest.mark.parametrize("lists", [False, True])
def test_tekken_files(tmp_path: Path, lists: bool) -> None:
    special = [
        {"rank": rank, "token_str": name} for rank, name in ((0, "<unk>"), (1, "<s>"), (2, "</s>"), (3, "[THINK]"))
    ]
    folder = write(tmp_path, {"tekken.json": tekken(special_tokens=special) if lists else tekken()}, vocab_size=400)
    tokenizer, ranks = load(folder), {token: 32 + rank for rank, token in enumerate(TOKENS)}
    for line in LINES:
        assert tokenizer.encode(line, add_special_tokens=True) == [1, *expected(line, "tekken", ranks)], line
    assert len(TOKENS) + 32 <= tokenizer.vocab_size == 400
    assert tokenizer.tokens[2:5] == ["</s>", "[THINK]" if lists else "[INST]", "[/INST]"]
    assert tokenizer.tokens[31] == "<SPECIAL_31>"
    assert tokenizer.encode("[/INST]", add_special_tokens=False) == [4]
    assert tokenizer.eos_token_ids == (2,)


def test_vocab_and_merges(tmp_path: Path) -> None:
    alphabet = enumerate_alphabet()
    words = [alphabet[byte] for byte in range(256)] + ["he", "ll", "llo", "hello", "Ġhello"]
    files = {
        "vocab.json": {word: token_id for token_id, word in enumerate(words)},
        "merges.txt": "#version: 0.2\nh e\nl l\nll o\nhe llo\nĠ hello\n",
    }
    added = {"261": {"content": "<|im_end|>", "special": True}}
    folder = write(tmp_path, files, tokenizer_class="Qwen2TokenizerFast", added_tokens_decoder=added)
    tokenizer = load(folder)
    assert tokenizer.encode("hello hello<|im_end|>", add_special_tokens=True) == [259, 260, 261]
    assert tokenizer.encode("e\u0301", add_special_tokens=False) == tokenizer.encode("é", add_special_tokens=False)


def test_lists_of_word_pieces(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "##s", "a", "ü", "!"]
    files = {"vocab.txt": "\n".join(words) + "\n"}
    lower = load(write(tmp_path, files, tokenizer_class="BertTokenizer"))
    assert lower.encode("Hellos Ä!", add_special_tokens=True) == [2, 5, 6, 7, 9, 3]
    kept = load(write(tmp_path, files, tokenizer_class="BertTokenizer", do_lower_case=False, strip_accents=False))
    assert kept.encode("Hello hello ü", add_special_tokens=True) == [2, 1, 5, 8, 3]
    assert kept.between_ids == (3,)


@pytest.mark.parametrize(
    ("name", "content", "config", "message"),
    [
        ("tiktoken.model", tiktoken_file(TOKENS), {"tokenizer_class": "XTokenizer"}, "XTokenizer of tok"),
        ("tiktoken.model", tiktoken_file([b"a" * 1025]), {"tokenizer_class": "TikTokenTokenizer"}, "over 1024 bytes"),
        ("tiktoken.model", tiktoken_file(TOKENS), {}, "does not say how texts are split"),
        ("tiktoken.model", "aa== 0\n!! 1\n", {"tokenizer_class": "TikTokenTokenizer"}, "not base 64"),
        ("tiktoken.model", "YQ== 0\nYg== 7\n", {"tokenizer_class": "TikTokenTokenizer"}, "ranks are not 0, 1, 2"),
        ("tiktoken.model", "YQ==\n", {"tokenizer_class": "TikTokenTokenizer"}, "tiktoken.model is damaged"),
        ("tekken.json", "[]", {}, "tekken.json is damaged"),
        ("tekken.json", tekken(config={}), {}, "tekken.json is damaged"),
        ("tekken.json", tekken(config=sizes("(", 99, 9)), {}, "tekken"),
        ("tekken.json", tekken(special_tokens=[{"rank": 5, "token_str": "[INST]"}]), {}, "have one name"),
        ("tekken.json", tekken(config=sizes("a", 9, 10**9)), {}, "control"),
        ("tekken.json", tekken(special_tokens=[{"rank": 1, "token_str": "$A"}]), {}, "stand for the text itself"),
        ("vocab.txt", "a\nb\n", {}, r"lacks \[UNK\]"),
        ("vocab.txt", "a\nb\n", {"tokenizer_class": "XTokenizer"}, "XTokenizer is not known"),
        ("vocab.json", {"a": 0}, {"tokenizer_class": "GPT2Tokenizer"}, "has no tokenizer"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, name: str, content: Any, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(write(tmp_path, {name: content}, **config))


def test_a_merge_that_is_no_pair_is_named_with_its_file(tmp_path: Path) -> None:
    files = {"vocab.json": {"a": 0}, "merges.txt": "a\n"}
    with pytest.raises(ModelError, match=rf"the merge 'a' \({tmp_path}/merges.txt\) is not two tokens"):
        load(write(tmp_path, files, tokenizer_class="GPT2Tokenizer"))


@pytest.mark.parametrize(
    ("limit", "most", "message"), [("_MAX_MERGES", 9, "in over 9 ways"), ("MAX_JSON_BYTES", 99, "larger than 99 bytes")]
)
def test_a_vocabulary_asks_for_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, message: str
) -> None:
    folder = write(tmp_path, {"tiktoken.model": tiktoken_file(TOKENS)}, tokenizer_class="TikTokenTokenizer")
    monkeypatch.setattr(vocabulary_files, limit, most)
    with pytest.raises(ModelError, match=message):
        load(folder)
