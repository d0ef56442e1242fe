"""The tokenizer of the real Gemma 3 270M, compared with SentencePiece on a thousand lines of mixed scripts."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from server.text.detokenizer import IncrementalDetokenizer
from server.text.tokenization.gguf_metadata import read_gguf_metadata
from server.text.tokenizer import Tokenizer
from tests.server.support.mixed_lines import lines_of

GOLDEN = json.loads((Path(__file__).parents[3] / "golden" / "gemma3_tokenizer.json").read_bytes())


@pytest.fixture(scope="module")
def tokenizer(gemma_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(read_gguf_metadata(gemma_path))


@pytest.mark.parametrize("entry", GOLDEN["scripts"], ids=lambda entry: entry["script"].split()[0])
def test_equals_sentencepiece_on_lines_of(tokenizer: Tokenizer, entry: dict[str, Any]) -> None:
    lines = lines_of(entry["script"])
    token_ids = [tokenizer.encode(line, add_special_tokens=False) for line in lines]
    assert token_ids[: len(entry["first"])] == entry["first"]
    assert hashlib.sha256(json.dumps(token_ids).encode()).hexdigest() == entry["sha256_of_ids"]
    for line, ids in zip(lines, token_ids, strict=True):
        detokenizer = IncrementalDetokenizer(tokenizer)
        streamed = "".join(detokenizer.decode([token_id]) for token_id in ids)
        assert streamed == tokenizer.decode(ids) == line.replace("\u2581", " ")


def test_facts_of_the_file(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("Hi", add_special_tokens=True)[0] == tokenizer.bos_token_id == 2
    # The file states 1; the name <end_of_turn> says that 106 ends an output too.
    assert tokenizer.eos_token_ids == (1, 106)
    assert tokenizer.encode("<start_of_turn>user\n", add_special_tokens=False) == [105, 2364, 107]
