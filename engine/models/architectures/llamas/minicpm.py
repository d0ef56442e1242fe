"""The architecture of MiniCPM and MiniCPM4 (Hu et al., "MiniCPM", 2024)."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from engine.interface.errors import ModelError
from engine.models.architectures.granite import Granite, with_multipliers, with_multipliers_of_gguf
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.longrope import LongRope, read_longrope, read_longrope_of_gguf
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

# Where config.json says nothing; source: the maker's MiniCPMConfig.
_DEFAULTS: dict[str, Any] = {"scale_emb": 1, "scale_depth": 1, "dim_model_base": 1, "max_position_embeddings": 2048}


@dataclass(frozen=True)
class MiniCpm(Granite):
    """Granite's multipliers, which folders state in another way."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        if config.integer("num_experts", least=0):
            raise config.error("num_experts", "experts are not served for this architecture")
        if config.value("sparse_config") is not None:
            raise config.error("sparse_config", "sparse attention is not served")
        sizes = folder_config.read_sizes(config)
        rotary, longrope = read_longrope(config, sizes["head_dim"], sizes["context_length"])
        refuse_long(longrope, sizes["context_length"])
        usual = folder_config.read_decoder(config, tensor_names, "minicpm", rotary=rotary, is_tied=True)
        multipliers = {
            "embedding_multiplier": config.required_positive_number("scale_emb"),
            "residual_multiplier": config.required_positive_number("scale_depth") / usual.num_layers**0.5,
            "logits_scaling": usual.hidden_size / config.required_positive_number("dim_model_base"),
        }
        # As in GGUF files, which have float32.
        as_stored = {key: float(str(np.float32(value))) for key, value in multipliers.items()}
        stated = {**as_stored, "attention_multiplier": usual.attention_scale}
        return cls(with_multipliers(config.with_values(stated), usual))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        sizes = gguf_config.read_sizes(file)
        rotary, longrope = read_longrope_of_gguf(file, sizes["head_dim"], sizes["context_length"])
        refuse_long(longrope, sizes["context_length"])
        return cls(with_multipliers_of_gguf(file, gguf_config.read_decoder(file, rotary=rotary)))


def refuse_long(longrope: LongRope | None, context_length: int) -> None:
    """Raises ModelError where a context may need the factors of long ones."""
    if longrope is not None and longrope.original_context < context_length:
        raise ModelError(
            f"rope_scaling: contexts of {context_length} tokens, beyond the {longrope.original_context} of "
            "original_max_position_embeddings, are not served for this architecture"
        )
