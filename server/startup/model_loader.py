"""Loads a model by its name: the engine, the tokenizer and the chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import orjson

from engine.interface.config import EngineConfig
from engine.interface.errors import ModelError
from engine.interface.regular_file import open_regular
from engine.interface.types import PictureInput, Progress
from server.media.families.picture_formats import read_mmproj_format, read_picture_format
from server.media.picture_format import PictureFormat
from server.model_sources.builtin_models import BUILTIN_MODELS
from server.model_sources.model_store import ensure_model, name_of
from server.startup.adapter_settings import limits_of, load_first, paths_of
from server.startup.model_sizes import ModelBytes, bytes_of
from server.startup.model_task import check_task
from server.startup.settings import OPENAI_DEFAULTS, ServerSettings
from server.text.text_model import TextModel
from server.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from engine.client import EngineClient, EnginePlan


_NO_MEMORY = "RESOURCE_EXHAUSTED"  # how the errors of JAX begin where memory is short
MAX_TEMPLATE_BYTES = 4 << 20  # of a file with a chat template; templates have some kilobytes


class LoadedModel(NamedTuple):
    engine: EngineClient  # not yet started
    text_model: TextModel
    num_adapter_slots: int = 0
    adapters: Mapping[str, tuple[int, str]] = MappingProxyType({})  # those in memory: slot and digest by name


@dataclass(frozen=True)
class ModelPlan:
    """A model of which all is checked that is known without its memory: `load` has then little left to fail at."""

    engine: EnginePlan
    text_model: TextModel  # without pictures, which are those that the loaded engine takes
    read_pictures: Callable[[PictureInput | None], PictureFormat | None]  # raises ValueError
    adapters: Mapping[str, Path] = field(default_factory=dict)

    def load(self, progress: Progress) -> LoadedModel:
        """Reads the weights and compiles the programs. Blocks; call it in a thread. Raises ValueError or OSError."""
        # It is imported here, because it imports JAX, and the server must listen before that is loaded.
        from engine.client import EngineClient

        try:
            engine = EngineClient.load_planned(self.engine, progress)
            try:
                text_model = replace(self.text_model, pictures=self.read_pictures(engine.model_info.pictures))
                limits = self.engine.config.adapters
                num_slots = limits.num_slots if limits is not None and engine.takes_adapters else 0
                return LoadedModel(engine, text_model, num_slots, load_first(engine, self.adapters, num_slots))
            except BaseException:
                engine.shutdown()
                raise
        except (MemoryError, RuntimeError) as error:
            if not isinstance(error, MemoryError) and _NO_MEMORY not in str(error):
                raise
            reason = (str(error).splitlines() or ["no more is available"])[0].removeprefix(f"{_NO_MEMORY}: ")
            raise ValueError(
                f"there is not enough memory for the model and its cache ({reason.rstrip('.')}); lower "
                "memory_utilization, num_pages, max_num_seqs or max_model_len, or take a smaller model (`eagre models` "
                "lists what fits)"
            ) from error

    @property
    def num_bytes(self) -> ModelBytes:
        """About what the model takes; it blocks."""
        if self.engine.config.num_hosts > 1:  # JAX must not be used before the hosts are connected
            return ModelBytes()
        return bytes_of(self.engine)


def load_model(settings: ServerSettings, progress: Progress) -> LoadedModel:
    """`plan_model` and its `load`. Blocks; call it in a thread."""
    return plan_model(settings, progress).load(progress)


def plan_model(settings: ServerSettings, progress: Progress) -> ModelPlan:
    """Pulls the model if it is missing, and checks its files and the settings. Blocks; call it in a thread.

    Raises ModelStoreError, ValueError or OSError.
    """
    limits = limits_of(settings) if settings.takes_adapters else None

    def configure(eos_token_ids: tuple[int, ...]) -> EngineConfig:
        return replace(settings.engine_config(eos_token_ids), adapters=limits)

    plan = plan_with(settings.model, configure, progress, settings.chat_template)
    check_task(settings.task, plan.engine)
    switches = settings.mm_processor_kwargs

    def read_pictures(taken: PictureInput | None) -> PictureFormat | None:
        form = plan.read_pictures(taken)
        return form if form is None or switches is None else form.with_switches(orjson.loads(switches))

    read_pictures(plan.engine.pictures)
    adapters = {} if limits is None else paths_of(settings.lora)
    for path in adapters.values():
        plan.engine.check_adapter(path)
    return ModelPlan(plan.engine, _with_settings(plan.text_model, settings), read_pictures, adapters)


def _with_settings(text_model: TextModel, settings: ServerSettings) -> TextModel:
    """The model's texts as the settings have them; raises ValueError."""
    variables = settings.default_chat_template_kwargs
    if variables is not None:
        text_model = text_model.with_defaults({}, orjson.loads(variables))
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


def plan_with(
    model: str,
    configure: Callable[[tuple[int, ...]], EngineConfig],
    progress: Progress,
    chat_template: str | None = None,
) -> ModelPlan:
    """As `plan_model`, with `configure`, which makes the engine's configuration from the end tokens of the model.

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
    from engine.client import EngineClient

    config = configure(tuple(text_model.tokenizer.eos_token_ids))
    if config.max_model_len is None and text_model.sentences is not None:
        config = replace(config, max_model_len=text_model.sentences.max_tokens)
    plan = EngineClient.plan(path, config)
    read_pictures = partial(_read_pictures, path, plan.mmproj, text_model.tokenizer)
    read_pictures(plan.pictures)
    return ModelPlan(plan, text_model, read_pictures)


def _read_pictures(
    path: Path, mmproj: Path | None, tokenizer: Tokenizer, taken: PictureInput | None
) -> PictureFormat | None:
    """How the model takes pictures; None where it reads text alone. Raises ModelError."""
    if taken is None:
        return None
    if mmproj is not None:
        return read_mmproj_format(mmproj, path, taken, tokenizer.tokens)
    return read_picture_format(path, taken, tokenizer.token_text)


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
