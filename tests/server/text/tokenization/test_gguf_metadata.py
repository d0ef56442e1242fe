from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

from engine.interface.errors import ModelError
from server.text.tokenization.gguf_metadata import TokenType, read_gguf_metadata
from tests.server.support.gguf_files import byte_level_fields, metadata_of, write_gguf


def test_reads_every_field(tmp_path: Path) -> None:
    fields = byte_level_fields() | {
        "tokenizer.ggml.eot_token_id": 2,
        "tokenizer.ggml.eom_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": False,
        "other.array": [1.5, 2.5],
        "other.empty": [],
    }
    metadata = metadata_of(tmp_path, fields)
    assert (metadata.architecture, metadata.name, metadata.context_length) == ("llama", "Tiny", 128)
    assert (metadata.tokenizer_model, metadata.tokenizer_pre) == ("gpt2", "smollm")
    assert metadata.tokens == tuple(fields["tokenizer.ggml.tokens"])
    assert metadata.token_types == tuple(fields["tokenizer.ggml.token_type"])
    assert metadata.merges == tuple(fields["tokenizer.ggml.merges"])
    assert metadata.scores == ()
    assert (metadata.bos_token_id, metadata.eos_token_id) == (1, 2)
    assert (metadata.eot_token_id, metadata.eom_token_id) == (2, 0)
    assert (metadata.add_bos_token, metadata.add_space_prefix) == (True, False)
    assert metadata.chat_template == fields["tokenizer.chat_template"]


def test_optional_fields_may_be_missing(tmp_path: Path) -> None:
    fields = byte_level_fields()
    for key in ("general.name", "tokenizer.chat_template", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.pre"):
        del fields[key]
    metadata = metadata_of(tmp_path, fields)
    assert (metadata.name, metadata.chat_template, metadata.bos_token_id) == (None, None, None)
    assert metadata.add_bos_token is None
    assert metadata.tokenizer_pre is None


@pytest.mark.parametrize(
    "key",
    [
        "general.architecture",
        "llama.context_length",
        "tokenizer.ggml.model",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",
    ],
)
def test_a_missing_field_is_named(tmp_path: Path, key: str) -> None:
    fields = byte_level_fields()
    del fields[key]
    with pytest.raises(ModelError, match=f"lacks the field {key}"):
        metadata_of(tmp_path, fields)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"llama.context_length": "long"}, "llama.context_length is str where int is needed"),
        ({"tokenizer.ggml.token_type": [1, 1]}, r"token_type has 2 entries for \d+ tokens"),
        ({"tokenizer.ggml.merges": [1, 2]}, "merges holds something that is not str"),
        ({"tokenizer.ggml.eos_token_id": 9999}, "eos_token_id is 9999, outside the vocabulary"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        metadata_of(tmp_path, byte_level_fields() | changed)


def test_a_token_that_is_stated_as_minus_one_is_none(tmp_path: Path) -> None:
    fields = byte_level_fields() | {"tokenizer.ggml.bos_token_id": -1}
    assert metadata_of(tmp_path, fields).bos_token_id is None


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    fields = byte_level_fields() | {"tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.token_type": [1, 1]}
    whole = write_gguf(tmp_path / "whole.gguf", fields).read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelError, match="is no GGUF file, or it is damaged or cut short"):
            read_gguf_metadata(cut)


def test_other_versions_and_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="version 1 "):
        read_gguf_metadata(write_gguf(tmp_path / "old.gguf", byte_level_fields(), version=1))
    other = tmp_path / "other.gguf"
    other.write_bytes(b"PK\x03\x04 and more")
    with pytest.raises(ModelError, match="is no GGUF"):
        read_gguf_metadata(other)


def test_the_default_model(model_path: Path) -> None:
    metadata = read_gguf_metadata(model_path)
    assert (metadata.architecture, metadata.context_length) == ("llama", 8192)
    assert len(metadata.tokens) == len(metadata.token_types) == 49152
    assert metadata.tokens[2] == "<|im_end|>"
    assert metadata.token_types[2] == TokenType.CONTROL
    assert metadata.merges[0] == "Ġ t"
    assert (metadata.bos_token_id, metadata.eos_token_id, metadata.add_bos_token) == (1, 2, False)


@pytest.mark.parametrize("difference", [-1, 1, 64])
def test_an_embedding_of_another_number_of_tokens_is_refused(tmp_path: Path, difference: int) -> None:
    num_rows = len(byte_level_fields()["tokenizer.ggml.tokens"]) + difference
    path = with_embedding(tmp_path, num_rows)
    with pytest.raises(
        ModelError, match=f"token_embd.weight has {num_rows} rows, .* has {num_rows - difference} tokens"
    ):
        read_gguf_metadata(path)


def test_an_embedding_of_the_same_number_of_tokens_is_fine(tmp_path: Path) -> None:
    num_tokens = len(byte_level_fields()["tokenizer.ggml.tokens"])
    assert len(read_gguf_metadata(with_embedding(tmp_path, num_tokens)).tokens) == num_tokens


def with_embedding(folder: Path, num_rows: int) -> Path:
    writer = GGUFWriter(folder / "tiny.gguf", "llama")
    writer.add_context_length(128)
    fields = byte_level_fields()
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(fields["tokenizer.ggml.tokens"])
    writer.add_token_types(fields["tokenizer.ggml.token_type"])
    writer.add_token_merges(fields["tokenizer.ggml.merges"])
    writer.add_tensor("token_embd.weight", np.zeros((num_rows, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "tiny.gguf"
