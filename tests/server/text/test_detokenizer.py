from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as ReferenceTokenizer
from tokenizers import decoders
from tokenizers.models import BPE

from server.text.detokenizer import IncrementalDetokenizer
from server.text.text_model import TextModel
from server.text.tokenization.byte_alphabet import byte_of_character

GREEDY = json.loads((Path(__file__).parents[2] / "golden" / "smollm2_greedy.json").read_bytes())


@dataclass(frozen=True)
class Table:
    token_bytes: list[bytes]


# Token n is byte n; 256 and 257 are control tokens; the rest are longer pieces that cut characters.
PIECES = [
    "é".encode()[1:] + b"a",
    "€".encode()[:2],
    "😀".encode()[:3],
    "😀".encode()[3:] + b" ",
    b"\xf0\x9f",
    b"\xed\xa0",
]
TABLE = Table([*(bytes([byte]) for byte in range(256)), b"", b"", *PIECES])


def reference() -> ReferenceTokenizer:
    """The same vocabulary in the `tokenizers` library, whose decoder is the reference."""
    character = {byte: text for text, byte in byte_of_character().items()}
    names = ["".join(character[byte] for byte in piece) for piece in TABLE.token_bytes]
    names[256:258] = ["<|a|>", "<|b|>"]
    tokenizer = ReferenceTokenizer(BPE({name: token_id for token_id, name in enumerate(names)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|a|>", "<|b|>"])
    return tokenizer


REFERENCE = reference()
token_ids_of_texts = st.text(max_size=20).map(lambda text: list(text.encode("utf-8")))
any_token_ids = st.lists(st.integers(0, len(TABLE.token_bytes) - 1), max_size=40)


@given(st.one_of(token_ids_of_texts, any_token_ids), st.data())
def test_every_split_gives_the_whole_text(token_ids: list[int], data: st.DataObject) -> None:
    detokenizer = IncrementalDetokenizer(TABLE)
    text, start = "", 0
    while start < len(token_ids):
        end = data.draw(st.integers(start + 1, len(token_ids)))
        text += detokenizer.decode(token_ids[start:end])
        start = end
    # Half a character at the end is left out; the reference has U+FFFD in its place, or one for each of its bytes.
    expected = REFERENCE.decode(token_ids, skip_special_tokens=True)
    assert expected.startswith(text)
    assert expected[len(text) :] in ("", "\ufffd", "\ufffd" * 2, "\ufffd" * 3)


@given(st.text(max_size=30))
def test_valid_text_never_shows_a_replacement(text: str) -> None:
    detokenizer = IncrementalDetokenizer(TABLE)
    shown = ""
    for byte in text.encode("utf-8"):
        shown += detokenizer.decode([byte])
        assert text.startswith(shown)
    assert shown == text


def test_a_character_waits_for_its_last_byte() -> None:
    detokenizer = IncrementalDetokenizer(TABLE)
    assert [detokenizer.decode([byte]) for byte in "😀!".encode()] == ["", "", "", "😀", "!"]


def test_control_tokens_are_skipped_within_a_character() -> None:
    detokenizer = IncrementalDetokenizer(TABLE)
    assert detokenizer.decode([0xC3, 256]) == ""
    assert detokenizer.decode([257, 0xA9]) == "é"


def test_a_token_outside_the_vocabulary_is_an_error() -> None:
    with pytest.raises(IndexError):
        IncrementalDetokenizer(TABLE).decode([len(TABLE.token_bytes)])


@pytest.mark.parametrize("entry", GREEDY["prompts"], ids=lambda entry: entry["name"])
def test_model_outputs_token_by_token(text_model: TextModel, entry: dict[str, list[int]]) -> None:
    detokenizer = IncrementalDetokenizer(text_model.tokenizer)
    text = "".join(detokenizer.decode([token_id]) for token_id in entry["output_token_ids"])
    # Half of a character at the end is left out.
    assert text == text_model.tokenizer.decode(entry["output_token_ids"]).removesuffix("\ufffd")
