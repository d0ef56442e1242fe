from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.interface.config import EngineConfig
from engine.interface.errors import ModelError
from server.media.families.qwen_pictures import QwenPictures
from server.media.picture_format import PictureFormat
from server.media.tiling import NativeSize
from server.startup import model_loader
from server.startup.model_loader import ModelPlan, load_model, plan_model
from server.startup.progress import silent
from server.startup.settings import ServerSettings, SettingsError
from server.text.text_model import TextModel
from tests.server.support.gguf_files import byte_level_fields, write_gguf

QWEN = QwenPictures(
    NativeSize(8, 64, 6400, 3), 4, 32, marker="<p>", token="<p>", token_id=0, patch_size=4, pixels_limit=6400
)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[[TextModel, PictureFormat | None], None]:
    """Makes the files of every model say these texts and pictures."""

    def set_up(text_model: TextModel, pictures: PictureFormat | None = None) -> None:
        engine = cast(Any, SimpleNamespace(is_encoder=False, is_headless=False, num_labels=0, pictures=None))
        plan = ModelPlan(engine, text_model, lambda taken: pictures)
        monkeypatch.setattr(model_loader, "plan_with", lambda *_: plan)

    return set_up


@pytest.mark.parametrize(("wanted", "expected"), [("model", {"temperature": 0.2}), ("openai", {})])
def test_the_models_sampling_can_be_turned_off(
    tmp_path: Path, planned: Callable[..., None], wanted: str, expected: dict[str, float]
) -> None:
    path = write_gguf(tmp_path / "x.gguf", byte_level_fields() | {"general.sampling.temp": 0.2})
    text_model = TextModel.load(path)
    planned(text_model)
    found = plan_model(ServerSettings(sampling_defaults=wanted), silent)
    assert dict(found.text_model.sampling_defaults) == expected
    assert found.text_model.tokenizer is text_model.tokenizer


def test_a_template_of_the_users_own_has_precedence(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", byte_level_fields() | {"tokenizer.chat_template.tool_use": "tools"})
    own = TextModel.load(path, chat_template="{{ bos_token }}own").chat_template
    assert own is not None
    assert own.render([{"role": "user", "content": ""}], tools=[{}]) == "<|im_start|>own"
    models = TextModel.load(path).chat_template
    assert models is not None
    assert models.render([{"role": "user", "content": ""}], tools=[{}]) == "tools"


def test_variables_of_the_template_have_defaults(tmp_path: Path, planned: Callable[..., None]) -> None:
    source = {"tokenizer.chat_template": "{{ enable_thinking }} {{ tone }}"}
    text_model = TextModel.load(write_gguf(tmp_path / "x.gguf", byte_level_fields() | source))
    planned(text_model)
    settings = ServerSettings(default_chat_template_kwargs='{"enable_thinking": false, "tone": "dry"}')
    template = plan_model(settings, silent).text_model.chat_template
    assert template is not None
    messages = [{"role": "user", "content": ""}]
    assert template.render(messages) == "False dry"
    assert template.render(messages, enable_thinking=True) == "True dry"


def test_settings_of_the_image_processor_have_defaults(tmp_path: Path, planned: Callable[..., None]) -> None:
    planned(TextModel.load(write_gguf(tmp_path / "x.gguf", byte_level_fields())), QWEN)
    form = plan_model(ServerSettings(mm_processor_kwargs='{"max_pixels": 640}'), silent).read_pictures(None)
    assert form is not None
    assert form.max_tokens == 10
    with pytest.raises(ValueError, match="max_pixels is 6401"):
        plan_model(ServerSettings(mm_processor_kwargs='{"max_pixels": 6401}'), silent)
    with pytest.raises(SettingsError, match=r"mm_processor_kwargs.*JSON object"):
        ServerSettings(mm_processor_kwargs="[]")


@pytest.mark.parametrize("text", ["{", "[1]", "7", '{"messages": []}', '{"a": ' + '"' + "x" * (64 << 10) + '"}'])
def test_other_defaults_of_variables_are_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"default_chat_template_kwargs.*JSON object"):
        ServerSettings(default_chat_template_kwargs=text)


@pytest.mark.parametrize(
    ("content", "words"), [(None, "cannot be read: No such file"), (b"\xff", "is damaged: it is not UTF-8")]
)
def test_a_template_that_cannot_be_read_ends_the_start(tmp_path: Path, content: bytes | None, words: str) -> None:
    path = tmp_path / "chat.jinja"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=rf"the chat template .*chat.jinja {words}"):
        load_model(ServerSettings(models=(str(tmp_path),), chat_template=str(path)), silent)


def test_a_template_without_an_end_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "chat.jinja"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    for named, words in ((path, "is larger than"), ("/dev/zero", "cannot be read: it is a device")):
        with pytest.raises(ModelError, match=f"the chat template {named} {words}"):
            load_model(ServerSettings(models=(str(tmp_path),), chat_template=str(named)), silent)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes."), "Out of memory allocating 5 bytes"),
        (MemoryError("Unable to allocate 9 GiB"), "Unable to allocate 9 GiB"),
        (MemoryError(), "no more is available"),
    ],
)
def test_too_little_memory_is_one_line_with_what_to_try(
    error: Exception, reason: str, model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> None:
        raise error

    monkeypatch.setattr("engine.client.EngineClient.load_planned", load)
    with pytest.raises(ValueError, match="lower memory_utilization, num_pages, max_num_seqs or max_model_len") as said:
        load_model(ServerSettings(), silent)
    assert str(said.value).startswith(f"there is not enough memory for the model and its cache ({reason}); ")


def test_more_pages_than_memory_are_refused(model_path: Path) -> None:
    engine = EngineConfig(num_pages=2_000_000_000)
    with pytest.raises(ValueError, match=r"num_pages is 2000000000; a page takes .* bytes, so at most .* fit"):
        load_model(ServerSettings(engine=engine), silent)
