"""Settings that some kinds of models cannot have yet."""

from __future__ import annotations

from collections.abc import Sequence

from engine.adapters.targets import targets_of
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.models.open_model import OpenModel

_SHARING = (
    "tensor_parallel",
    "num_hosts",
    "prefix_cache_dir",
)  # weights or pages with other devices, hosts or a folder


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
