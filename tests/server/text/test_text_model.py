from __future__ import annotations

from pathlib import Path

import pytest

from engine.interface.errors import ModelError
from server.text.text_model import TextModel
from tests.server.support.gguf_files import byte_level_fields, write_gguf


def test_a_text_model_has_all_parts_of_the_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "Tiny-1B.Q8_0.gguf", byte_level_fields())
    model = TextModel.load(path)
    assert (model.name, model.path, model.context_length) == ("Tiny-1B.Q8_0", path, 128)
    assert model.chat_template is not None
    text = model.chat_template.render([{"role": "user", "content": "hello"}])
    assert text == "user: hello\n"
    assert model.tokenizer.decode(model.tokenizer.encode(text, add_special_tokens=True)) == text


def test_a_given_name_replaces_the_default(tmp_path: Path) -> None:
    assert TextModel.load(write_gguf(tmp_path / "x.gguf", byte_level_fields()), "mine").name == "mine"


def test_a_model_without_a_chat_template_has_none(tmp_path: Path) -> None:
    fields = byte_level_fields()
    del fields["tokenizer.chat_template"]
    assert TextModel.load(write_gguf(tmp_path / "x.gguf", fields)).chat_template is None


def test_the_template_gets_the_special_tokens(tmp_path: Path) -> None:
    fields = byte_level_fields() | {"tokenizer.chat_template": "{{ bos_token }}+{{ eos_token }}"}
    model = TextModel.load(write_gguf(tmp_path / "x.gguf", fields))
    assert model.chat_template is not None
    assert model.chat_template.render([{"role": "user", "content": ""}]) == "<|im_start|>+<|im_end|>"


def test_a_broken_template_is_reported(tmp_path: Path) -> None:
    fields = byte_level_fields() | {"tokenizer.chat_template": "{% if %}"}
    with pytest.raises(ModelError, match="broken"):
        TextModel.load(write_gguf(tmp_path / "x.gguf", fields))


def test_the_default_model(text_model: TextModel) -> None:
    assert (text_model.name, text_model.context_length) == ("smollm2-135m-instruct", 8192)
    assert text_model.chat_template is not None
    text = text_model.chat_template.render([{"role": "user", "content": "Hi"}])
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
