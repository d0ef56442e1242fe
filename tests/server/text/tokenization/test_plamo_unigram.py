"""PLaMo's vocabulary in a GGUF file against a plain search for the cheapest way to write a text."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from engine.interface.errors import ModelError
from server.text.tokenization.gguf_metadata import TokenType
from server.text.tokenizer import Tokenizer
from tests.server.support.gguf_files import metadata_of

SPECIAL = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>", "<|plamo:pad|>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = [*"abcd <>0x1", "ab", "bc", "abc", "cd", "dab", "  ", "é", "日本", "本", "bcdab"]
UNKNOWN = 10_000_000


def fields_of(scores: list[float]) -> dict[str, Any]:
    types = [TokenType.UNKNOWN, *[TokenType.CONTROL] * 3, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * len(PIECES)]
    return {
        "general.architecture": "plamo2",
        "plamo2.context_length": 512,
        "tokenizer.ggml.model": "plamo2",
        "tokenizer.ggml.tokens": [*SPECIAL, *BYTES, *PIECES],
        "tokenizer.ggml.token_type": list(map(int, types)),
        "tokenizer.ggml.scores": [0.0] * 260 + scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def least_cost(text: str, costs: dict[str, int]) -> int:
    """Of the cheapest way to write a text, in tokens or, character by character, in bytes."""
    best = [0]
    for end in range(1, len(text) + 1):
        ways = [best[end - 1] + UNKNOWN]
        ways += [best[end - len(piece)] + cost for piece, cost in costs.items() if text[:end].endswith(piece)]
        best.append(min(ways))
    return best[-1]


def test_the_cheapest_tokens_write_a_text(tmp_path: Path) -> None:
    chance = random.Random(0)
    for number in range(6):
        scores = [round(chance.uniform(-12, -1), 4) for _ in PIECES]
        costs = {piece: round(-score * 1e4) for piece, score in zip(PIECES, scores, strict=True)}
        (tmp_path / str(number)).mkdir()
        tokenizer = Tokenizer.from_gguf(metadata_of(tmp_path / str(number), fields_of(scores)))
        for _ in range(40):
            text = "".join(chance.choices("abcd é日本😀<0x1>", k=chance.randrange(1, 30)))
            token_ids = tokenizer.encode(text, add_special_tokens=False)
            assert b"".join(tokenizer.token_bytes[token_id] for token_id in token_ids).decode() == text
            names = [tokenizer.tokens[token_id] for token_id in token_ids]
            in_bytes = "".join(name for name in names if name not in costs)
            assert all(name in BYTES or name in costs for name in names)
            num_unknown = len(bytes.fromhex(in_bytes.replace("<0x", "").replace(">", "")).decode())
            paid = sum(costs.get(name, 0) for name in names) + num_unknown * UNKNOWN
            assert paid == least_cost(text, costs), text


def test_control_tokens_are_found_in_templates_and_not_in_messages(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(metadata_of(tmp_path, fields_of([-1.0] * len(PIECES))))
    assert tokenizer.encode("<|plamo:bos|>ab", add_special_tokens=False)[0] == 1
    in_message = tokenizer.encode_parts(["<|plamo:bos|>ab"])
    assert 1 not in in_message
    assert tokenizer.decode(in_message) == "<|plamo:bos|>ab"
    assert tokenizer.encode("\ufeffab", add_special_tokens=False) == tokenizer.encode("ab", add_special_tokens=False)


def test_a_vocabulary_without_bytes_is_refused(tmp_path: Path) -> None:
    fields = fields_of([-1.0] * len(PIECES))
    fields["tokenizer.ggml.token_type"][7] = int(TokenType.NORMAL)
    with pytest.raises(ModelError, match="255 tokens of bytes, and not 256"):
        Tokenizer.from_gguf(metadata_of(tmp_path, fields))


@pytest.mark.parametrize("score", [float("nan"), float("-inf")])
def test_scores_that_are_no_numbers_are_refused(tmp_path: Path, score: float) -> None:
    with pytest.raises(ModelError, match="the vocabulary of PLaMo is not accepted"):
        Tokenizer.from_gguf(metadata_of(tmp_path, fields_of([score] * len(PIECES))))
