"""Loads a model by its name: the engine, the tokenizer and the chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import orjson

from engine.interface.config import EngineConfig, ModelInfo
from engine.interface.errors import ModelError
from engine.interface.regular_file import open_regular
from engine.interface.types import Progress
from server.media.families.picture_formats import read_mmproj_format, read_picture_format
from server.media.picture_format import PictureFormat
from server.model_sources.builtin_models import BUILTIN_MODELS
from server.model_sources.model_store import ensure_model, name_of
from server.startup.adapter_settings import limits_of, load_first, paths_of
from server.startup.model_task import check_task
from server.startup.settings import OPENAI_DEFAULTS, ServerSettings
from server.text.text_model import TextModel
from server.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from engine.client import EngineClient


_NO_MEMORY = "RESOURCE_EXHAUSTED"  # how the errors of JAX begin where memory is short
MAX_TEMPLATE_BYTES = 4 << 20  # of a file with a chat template; templates have some kilobytes


class LoadedModel(NamedTuple):
    engine: EngineClient  # not yet started
    text_model: TextModel
    num_adapter_slots: int = 0
    adapters: Mapping[str, tuple[int, str]] = MappingProxyType({})  # those in memory: slot and digest by name


def load_model(settings: ServerSettings, progress: Progress) -> LoadedModel:
    """Pulls the model if it is missing, reads it, and compiles its programs. Blocks; call it in a thread.

    Raises ModelStoreError, ValueError or OSError.
    """
    limits = limits_of(settings) if settings.takes_adapters else None

    def configure(eos_token_ids: tuple[int, ...]) -> EngineConfig:
        return replace(settings.engine_config(eos_token_ids), adapters=limits)

    loaded = load_with(settings.model, configure, progress, settings.chat_template)
    engine = loaded.engine
    try:
        check_task(settings.task, engine.model_info)
        if limits is not None:
            adapters = load_first(engine, paths_of(settings.lora), limits.num_slots)
            num_slots = limits.num_slots if engine.takes_adapters else 0
            loaded = loaded._replace(num_adapter_slots=num_slots, adapters=adapters)
        return loaded._replace(text_model=_with_settings(loaded.text_model, settings))
    except BaseException:
        engine.shutdown()
        raise


def _with_settings(text_model: TextModel, settings: ServerSettings) -> TextModel:
    """The model's texts as the settings have them; raises ValueError."""
    variables, switches, form = settings.default_chat_template_kwargs, settings.mm_processor_kwargs, text_model.pictures
    if variables is not None:
        text_model = text_model.with_defaults({}, orjson.loads(variables))
    if form is not None and switches is not None:
        text_model = replace(text_model, pictures=form.with_switches(orjson.loads(switches)))
    if settings.sampling_defaults == OPENAI_DEFAULTS:
        text_model = replace(text_model, sampling_defaults={})
    return replace(text_model, ignores_media=True) if settings.ignore_media else text_model


def follow_model(settings: ServerSettings, progress: Progress, on_lost: Callable[[BaseException], None]) -> None:
    """Loads this host's share of the model and follows the leader until that ends. Blocks; call it in a thread.

    Raises HostLost where the leader is lost or has failed, otherwise as `load_model`.
    """
    path = ensure_model(settings.model, progress)
    from engine.client import EngineClient

    limits = limits_of(settings) if settings.takes_adapters else None
    EngineClient.follow(path, replace(settings.engine_config(), adapters=limits), progress, on_lost)


def load_with(
    model: str,
    configure: Callable[[tuple[int, ...]], EngineConfig],
    progress: Progress,
    chat_template: str | None = None,
) -> LoadedModel:
    """As `load_model`, with `configure`, which makes the engine's configuration from the end tokens of the model.

    `chat_template` is the path of a template that replaces the model's own.
    """
    template = None if chat_template is None else _read_template(Path(chat_template))
    path = ensure_model(model, progress)
    try:
        builtin = BUILTIN_MODELS.get(model)
        card = None if builtin is None else builtin.sampling
        text_model = TextModel.load(path, name_of(model, path), card, template)
    except ModelError:
        from engine.client import EngineClient

        # If the architecture is not served, other files and fields may be missing too, so it is checked first.
        EngineClient.refuse_unserved(path)
        raise
    # It is imported here, because it imports JAX, and the server must listen before that is loaded.
    from engine.client import EngineClient

    config = configure(tuple(text_model.tokenizer.eos_token_ids))
    if config.max_model_len is None and text_model.sentences is not None:
        config = replace(config, max_model_len=text_model.sentences.max_tokens)
    try:
        engine = EngineClient.load(path, config, progress)
        try:
            text_model = replace(text_model, pictures=_read_pictures(path, engine.model_info, text_model.tokenizer))
        except BaseException:
            engine.shutdown()
            raise
        return LoadedModel(engine, text_model)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and _NO_MEMORY not in str(error):
            raise
        reason = (str(error).splitlines() or ["no more is available"])[0].removeprefix(f"{_NO_MEMORY}: ")
        raise ValueError(
            f"there is not enough memory for the model and its cache ({reason.rstrip('.')}); lower memory_utilization, "
            "num_pages, max_num_seqs or max_model_len, or take a smaller model (`eagre models` lists what fits)"
        ) from error


def _read_pictures(path: Path, info: ModelInfo, tokenizer: Tokenizer) -> PictureFormat | None:
    """How the model takes pictures; None where it reads text alone. Raises ModelError."""
    if info.pictures is None:
        return None
    if info.mmproj is not None:
        return read_mmproj_format(Path(info.mmproj), path, info.pictures, tokenizer.tokens)
    return read_picture_format(path, info.pictures, tokenizer.token_text)


def _read_template(path: Path) -> str:
    """Raises ModelError where the file cannot be read, is too large, or is not UTF-8."""
    try:
        with open_regular(path) as file:
            content = file.read(MAX_TEMPLATE_BYTES + 1)
        if len(content) > MAX_TEMPLATE_BYTES:
            raise ModelError(f"the chat template {path} is larger than {MAX_TEMPLATE_BYTES} bytes, the limit for one")
        return content.decode("utf-8")
    except OSError as error:
        raise ModelError(f"the chat template {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"the chat template {path} is damaged: it is not UTF-8: {error}") from error
