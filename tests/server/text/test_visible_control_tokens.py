"""Control tokens that mark the parts of an answer are seen by who takes it apart, and by nobody else."""

from __future__ import annotations

from pathlib import Path

from server.text.detokenizer import IncrementalDetokenizer, show_control_tokens
from server.text.tokenizer import Tokenizer
from tests.server.support.gguf_files import byte_level_fields, metadata_of


def test_named_control_tokens_have_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(metadata_of(tmp_path, byte_level_fields()))
    token_ids = [1, *tokenizer.encode("hé", add_special_tokens=False), 2]
    shown = show_control_tokens(tokenizer, ["<|im_end|>", "<unknown>"])
    assert IncrementalDetokenizer(shown).decode(token_ids) == "hé<|im_end|>"
    assert IncrementalDetokenizer(tokenizer).decode(token_ids) == "hé"
    assert shown.token_text(1) == "<|im_start|>"
    assert show_control_tokens(tokenizer, ["<tool_call>"]) is tokenizer
