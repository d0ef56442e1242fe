"""Mixtral's architecture (Jiang et al., 2024): Mistral's attention, and experts; GGUF files name it as Llama's."""

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, Self

from engine.models.parts import folder_config
from engine.models.parts.decoder import Names
from engine.models.parts.experts import ExpertsDecoder, read_folder, read_gguf
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class Mixtral(ExpertsDecoder):
    """The shares of a token's experts add up to 1."""

    is_paired_in_gguf = True
    router_names: ClassVar[Names] = ("block_sparse_moe.gate", "ffn_gate_inp")
    expert_names: ClassVar[Mapping[str, Names]] = {
        "gate": ("block_sparse_moe.experts.{expert}.w1", "ffn_gate_exps"),
        "up": ("block_sparse_moe.experts.{expert}.w3", "ffn_up_exps"),
        "down": ("block_sparse_moe.experts.{expert}.w2", "ffn_down_exps"),
    }

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(config, tensor_names, "mixtral", default_theta=1_000_000.0)
        windows = folder_config.read_windows(config, [True] * usual.num_layers)
        return cls(read_folder(config, dataclasses.replace(usual, windows=windows), normalises_shares=True))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(read_gguf(file, normalises_shares=True))
