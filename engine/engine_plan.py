"""What is known of an engine before anything of its model is in memory: that its files are whole, and fit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.adapters.adapter_memory import with_adapter_bytes
from engine.adapters.gguf_adapter import open_adapter
from engine.adapters.targets import targets_of
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.interface.errors import ModelError, naming
from engine.interface.types import ModelFootprint, PictureInput
from engine.models.footprint import footprint
from engine.models.open_model import OpenModel, open_model
from engine.models.registry import is_headless, names_in_gguf
from engine.parallel.placement import Devices, choose_devices
from engine.step.picture_encoding import picture_input, picture_positions

_LOG = logging.getLogger(__name__)

_SHARING = (
    "tensor_parallel",
    "num_hosts",
    "prefix_cache_dir",
)  # weights or pages with other devices, hosts or a folder


@dataclass(frozen=True)
class EnginePlan:
    """A model whose files were checked, of which an engine can be loaded."""

    opened: OpenModel  # laid out for the longest requests
    config: EngineConfig
    devices: Devices | None  # None: they are known once the hosts are connected

    @classmethod
    def of(cls, path: Path, config: EngineConfig) -> EnginePlan:
        """Reads the headers of a model's files; raises as `Engine.load`, but for what is lacking of the memory."""
        config.check_packages()
        opened = open_model(path, language_model_only=config.language_model_only, mmproj=config.mmproj_path)
        if opened.lacks_encoder and not config.language_model_only:
            _LOG.warning(
                "%s: config.json states an encoder of pictures (vision_config), and the folder has no tensors of one; "
                "the model is served as one that reads text alone",
                path,
            )
        refuse_unsupported(opened, config)
        opened = opened.laid_out_for(config.max_model_len)
        return cls(opened, config, choose_devices(config, opened.model) if config.num_hosts == 1 else None)

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest request, where the memory has pages for it."""
        context_length = self.opened.config.context_length
        return min(self.config.max_model_len or context_length, context_length)

    @property
    def is_encoder(self) -> bool:
        return self.opened.model.is_encoder

    @property
    def is_headless(self) -> bool:
        return is_headless(self.opened.architecture)

    @property
    def num_labels(self) -> int:
        return self.opened.model.num_labels

    @property
    def mmproj(self) -> Path | None:
        """The file of the encoder of pictures, where that has one of its own."""
        return self.opened.mmproj

    @property
    def pictures(self) -> PictureInput | None:
        """What the model takes of pictures, where the memory has pages for the longest request."""
        encoder = self.opened.model.encoder
        positions = picture_positions(encoder, self.max_model_len)
        return picture_input(encoder, positions, self.max_model_len, self.config.batched_tokens())

    def footprint(self) -> ModelFootprint:
        """The memory that the engine would take; raises ModelError or ValueError."""
        return with_adapter_bytes(footprint(self.opened, self.config), self.opened, self.config)

    def check_adapter(self, path: Path) -> None:
        """Raises ModelError where an adapter does not fit the model, by the headers of its files."""
        targets, limits = targets_of(self.opened.model), self.config.adapters
        if limits is None or not targets:
            raise ModelError(f"the model, {self.opened.architecture.name}, takes no adapters")
        with naming(path):
            adapter = open_adapter(path)
            adapter.check_architecture(names_in_gguf(self.opened.architecture))
            adapter.check(targets, limits.max_rank)


def refuse_unsupported(opened: OpenModel, config: EngineConfig) -> None:
    """Raises ValueError where a setting is one that the model cannot have."""
    model = opened.model
    if model.config.states:
        _refuse(
            config, (*_SHARING, "decode_chunk"),
            "a model with recurrent layers cannot have: it has states beside its pages",
        )  # fmt: skip
    encoder = model.encoder
    if encoder is not None:
        _refuse(
            config, _SHARING, "a model that sees pictures cannot have; with language_model_only it reads text alone"
        )
        least = -(-encoder.num_tokens // TILE_SIZE) * TILE_SIZE
        if encoder.sees_both_ways and config.batched_tokens() < least:
            raise ValueError(
                f"max_num_batched_tokens is {config.batched_tokens()}; the {encoder.num_tokens} tokens of a "
                f"picture are computed in one step, so it must be at least {least}"
            )
    if config.adapters is not None and config.adapters.is_required and not targets_of(model):
        raise ValueError(f"{opened.architecture.transformers_name} takes no adapters (lora) yet")
    if model.is_encoder:
        _refuse(config, _SHARING, "an encoder cannot have")


def _refuse(config: EngineConfig, names: Sequence[str], reason: str) -> None:
    is_set = {
        "tensor_parallel": config.tensor_parallel > 1,
        "num_hosts": config.num_hosts > 1,
        "decode_chunk": config.decode_chunk > 1,
        "prefix_cache_dir": config.keeps_pages,
    }
    for name in names:
        if is_set[name]:
            raise ValueError(f"{name} is {getattr(config, name)!r}, which {reason}")
