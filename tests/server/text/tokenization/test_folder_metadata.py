from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.interface.errors import ModelError
from engine.weights.formats.model_folder import ModelFolder
from server.text.tokenization.control_tokens import AddedToken
from server.text.tokenization.folder_metadata import FolderMetadata, read_folder_metadata
from tests.golden.tiny_llama import CONFIG
from tests.model_folders import CHAT_TEMPLATE, TOKENIZER_CONFIG, write_json


def read(folder: Path, *, config: dict[str, Any] | None = None, **files: Any) -> FolderMetadata:
    """Reads a folder with these files, which are given by name without suffix."""
    write_json(folder / "config.json", CONFIG | (config or {}))
    for name, content in files.items():
        write_json(folder / f"{name}.json", content)
    return read_folder_metadata(ModelFolder(folder))


def test_the_metadata_is_read_from_all_files(tmp_path: Path) -> None:
    metadata = read(
        tmp_path,
        config={"bos_token_id": 0, "eos_token_id": 1},
        tokenizer_config=TOKENIZER_CONFIG | {"add_bos_token": True, "add_eos_token": False},
        generation_config={"eos_token_id": [1, 3]},
    )
    assert (metadata.context_length, metadata.vocab_size) == (256, 320)
    assert (metadata.bos_token, metadata.bos_token_id, metadata.eos_token) == ("<s>", 0, "</s>")
    assert metadata.eos_token_ids == (1, 3, 1)
    assert (metadata.add_bos_token, metadata.add_eos_token) == (True, False)
    assert metadata.chat_template == CHAT_TEMPLATE


def test_a_folder_needs_only_a_few_fields(tmp_path: Path) -> None:
    metadata = read(tmp_path)
    assert (metadata.bos_token, metadata.bos_token_id, metadata.eos_token, metadata.eos_token_ids) == (
        None,
        None,
        None,
        (),
    )
    assert (metadata.add_bos_token, metadata.chat_template, dict(metadata.added_tokens)) == (None, None, {})


@pytest.mark.parametrize("name", ["n_positions", "model_max_length"])
def test_the_context_may_have_the_name_that_gpt2_or_kimi_linear_gives_it(tmp_path: Path, name: str) -> None:
    write_json(tmp_path / "config.json", {"vocab_size": 300, name: 64})
    assert read_folder_metadata(ModelFolder(tmp_path)).context_length == 64


def test_older_folders_keep_special_tokens_apart(tmp_path: Path) -> None:
    metadata = read(
        tmp_path,
        tokenizer_config={"bos_token": None},
        special_tokens_map={"bos_token": "<s>", "eos_token": {"content": "</s>"}},
        added_tokens={"<pad>": 319},
    )
    assert (metadata.bos_token, metadata.eos_token, metadata.added_tokens) == (
        "<s>",
        "</s>",
        {"<pad>": AddedToken(319)},
    )


def test_added_tokens_have_their_flags(tmp_path: Path) -> None:
    decoder = {
        "310": {"content": "<|user|>", "special": True, "rstrip": True},
        "311": {"content": "<mask>", "lstrip": True, "special": False},
        "312": {"content": "<x>"},
        "313": {"content": "[extra]", "special": False},
    }
    metadata = read(
        tmp_path,
        tokenizer_config={
            "added_tokens_decoder": decoder,
            "additional_special_tokens": ["[extra]", {"content": "<a>"}],
        },
        special_tokens_map={"pad_token": {"content": "<pad>"}, "additional_special_tokens": "wrong"},
        added_tokens={"<pad>": 314, "<a>": 315, "<plain>": 316},
    )
    assert metadata.added_tokens == {
        "<|user|>": AddedToken(310, is_special=True, strips_right=True),
        "<mask>": AddedToken(311, strips_left=True),
        "<x>": AddedToken(312),
        "[extra]": AddedToken(313, is_special=True),
        "<pad>": AddedToken(314, is_special=True),
        "<a>": AddedToken(315, is_special=True),
        "<plain>": AddedToken(316),
    }


def test_what_stands_before_a_text(tmp_path: Path) -> None:
    metadata = read(tmp_path)
    assert (metadata.legacy, metadata.add_prefix_space) == (None, None)
    metadata = read(tmp_path, tokenizer_config={"legacy": False, "add_prefix_space": True})
    assert (metadata.legacy, metadata.add_prefix_space) == (False, True)


def test_a_template_in_its_own_file_has_precedence(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("é", encoding="utf-8")
    assert read(tmp_path, tokenizer_config=TOKENIZER_CONFIG).chat_template == "é"


def test_of_several_templates_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    metadata = read(tmp_path, tokenizer_config={"chat_template": named})
    assert (metadata.chat_template, metadata.template_variants) == ("plain", {"tool_use": "tools"})
    assert read(tmp_path, tokenizer_config={"chat_template": named[:1]}).chat_template is None


@pytest.mark.parametrize(
    ("config", "files", "words"),
    [
        ({"eos_token_id": 320}, {}, r"config.json: eos_token_id is 320; it must be a token id from 0 to 319"),
        ({"eos_token_id": True}, {}, "eos_token_id is true"),
        (
            {},
            {"generation_config": {"eos_token_id": [1, "2"]}},
            r"generation_config.json: eos_token_id is \[1, \"2\"\]",
        ),
        ({"bos_token_id": -1}, {}, "bos_token_id is -1"),
        ({"vocab_size": 1 << 30}, {}, "vocab_size is 1073741824; it must be an integer from 1 to 16777216"),
        ({"max_position_embeddings": "many"}, {}, 'max_position_embeddings is "many"'),
        ({}, {"tokenizer_config": {"eos_token": 3}}, "eos_token is 3; it must be a token's text"),
        ({}, {"tokenizer_config": {"add_bos_token": 1}}, "add_bos_token is 1; it must be true or false"),
        ({}, {"tokenizer_config": {"chat_template": 5}}, "chat_template is 5"),
        ({}, {"tokenizer_config": {"chat_template": [{"name": "x"}]}}, "lacks its name or its template"),
        ({}, {"tokenizer_config": {"added_tokens_decoder": {"x": {"content": "y"}}}}, "must map token ids to tokens"),
        ({}, {"tokenizer_config": {"added_tokens_decoder": {"9" * 5000: "y"}}}, "must map token ids to tokens"),
        ({}, {"added_tokens": {"<pad>": "x"}}, '<pad> is "x"; it must be an integer'),
        ({}, {"tokenizer_config": []}, "tokenizer_config.json is damaged: it is no JSON object but list"),
    ],
)
def test_a_wrong_field_is_named_in_the_error(
    tmp_path: Path, config: dict[str, Any], files: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        read(tmp_path, config=config, **files)


def test_a_template_may_have_a_json_file_of_its_own(tmp_path: Path) -> None:
    assert read(tmp_path, tokenizer_config=TOKENIZER_CONFIG, chat_template={"chat_template": "x"}).chat_template == "x"


def test_templates_may_be_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("plain", encoding="utf-8")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("documents", encoding="utf-8")
    metadata = read(tmp_path)
    assert (metadata.chat_template, metadata.template_variants) == ("plain", {"rag": "documents"})


def test_a_template_that_is_not_utf8_is_reported(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelError, match=r"chat_template.jinja is damaged: it is not UTF-8"):
        read(tmp_path)


def test_sizes_may_stand_in_the_part_that_reads_text(tmp_path: Path) -> None:
    """As in folders of models that see, which leave out what is transformers' default."""
    inner = {"model_type": "gemma3_text", "hidden_size": 64}
    write_json(tmp_path / "config.json", {"model_type": "gemma3", "text_config": inner})
    metadata = read_folder_metadata(ModelFolder(tmp_path))
    assert (metadata.vocab_size, metadata.context_length) == (262_208, 131_072)
    inner = {"vocab_size": 300, "max_position_embeddings": 64, "eos_token_id": 7}
    write_json(tmp_path / "config.json", {"text_config": inner})
    metadata = read_folder_metadata(ModelFolder(tmp_path))
    assert (metadata.vocab_size, metadata.context_length, metadata.eos_token_ids) == (300, 64, (7,))
