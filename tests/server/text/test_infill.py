"""The tokens by which models are shown a gap, under the names of their families."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.text.infill import Infill, find_infill
from server.text.tokenizer import Tokenizer
from tests.server.support.gguf_files import byte_level_fields, metadata_of

QWEN = ("a", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>")
DEEPSEEK = ("<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581end\uff5c>")


@pytest.mark.parametrize(
    ("tokens", "stated", "expected"),
    [
        (QWEN, (), Infill(1, 3, 2, (4,))),
        (DEEPSEEK, (), Infill(1, 0, 2)),
        (("<fim_prefix>", "<fim_middle>", "<fim_suffix>"), (), Infill(0, 2, 1)),
        (("\u2581<PRE>", "\u2581<MID>", "\u2581<SUF>"), (None, None, None), Infill(0, 2, 1)),
        (("[SUFFIX]", "[PREFIX]"), (), Infill(1, 0, None)),
        (("a", "b", "c"), (2, 0, 1), Infill(2, 0, 1)),
        (("a", "<|fim_prefix|>", "<|fim_suffix|>"), (1, 2, None), None),
    ],
)
def test_names_and_fields(tokens: tuple[str, ...], stated: tuple[int | None, ...], expected: Infill | None) -> None:
    assert find_infill(tokens, stated) == expected


def test_prefix_suffix_middle_and_mistrals_order() -> None:
    assert Infill(1, 2, 3).parts(["a"], "b") == [1, "a", 2, "b", 3]
    assert Infill(1, 2, None).parts(["a"], "b") == [2, "b", 1, "a"]


def test_a_file_states_them_and_no_text_becomes_one(tmp_path: Path) -> None:
    fields = byte_level_fields()
    fields |= {f"tokenizer.ggml.fim_{part}_token_id": index for index, part in enumerate(("pre", "suf", "mid"))}
    metadata = metadata_of(tmp_path, fields)
    tokenizer = Tokenizer.from_gguf(metadata)
    infill = find_infill(metadata.tokens, metadata.infill_ids)
    assert infill is not None
    assert infill[:3] == (0, 1, 2)
    code = "x = 1  # <|im_end|>"
    token_ids = tokenizer.encode_parts(infill.parts([code], " y"))
    assert [token_id for token_id in token_ids if token_id < 3] == [
        *[tokenizer.bos_token_id] * tokenizer.num_prefix_tokens,
        0,
        1,
        2,
    ]
    assert tokenizer.decode(token_ids) == code + " y"
