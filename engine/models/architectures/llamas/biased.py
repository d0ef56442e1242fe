"""Architectures that are Llama's with biases: InternLM, InternLM3 and openPangu Embedded."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Self

from engine.models.architectures.llama import Llama
from engine.models.parts import folder_config
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class InternLM(Llama):
    """The first InternLM (InternLM team, "InternLM", 2023), with biases in attention."""

    model_type = "internlm"

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        renamed: dict[str, Any] = {"attention_bias": folder_config.read_flag(config, "bias", True)}
        rotation = config.table("rotary")  # of the later configurations
        if rotation is not None:
            renamed |= {"rope_theta": rotation.value("base"), "rope_scaling": {"type": rotation.value("type")}}
            if rotation.value("type") == "origin":
                renamed["rope_scaling"] = None
        return cls(folder_config.read_decoder(config.with_values(renamed), tensor_names, cls.model_type))


@dataclass(frozen=True)
class InternLM3(Llama):
    """InternLM3 (2025), whose queries, keys and values have biases by a flag of their own."""

    model_type = "internlm3"

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        has_bias = folder_config.read_flag(config, "bias", False)
        renamed = {"attention_bias": has_bias, "mlp_bias": has_bias}
        usual = folder_config.read_decoder(config.with_values(renamed), tensor_names, cls.model_type)
        return cls(dataclasses.replace(usual, has_qkv_bias=folder_config.read_flag(config, "qkv_bias", False)))


@dataclass(frozen=True)
class PanguEmbedded(Llama):
    """openPangu Embedded (Huawei, "Pangu Embedded", 2025), with biases in attention."""

    model_type = "PanguEmbedded"
    is_paired_in_gguf = False

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        renamed = {"attention_bias": folder_config.read_flag(config, "bias", True)}
        return cls(folder_config.read_decoder(config.with_values(renamed), tensor_names, cls.model_type))
