"""The Qwen3-Next architecture (Qwen Team, "Qwen3-Next", 2025): gated delta-nets, gated attention and experts."""

import re
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Self

from engine.models.parts.hybrids.delta_config import read_folder, read_gguf
from engine.models.parts.hybrids.delta_decoder import DeltaDecoder, Source
from engine.models.parts.model import Model
from engine.models.parts.routed.joined_experts import joined_experts_of
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.tensors import interleaved


@dataclass(frozen=True)
class Qwen3Next(DeltaDecoder):
    """The products of a delta-net are stored head of keys by head of keys."""

    # Whether a GGUF file, of an early converter, does so too; it says nothing about the model itself.
    is_joined_in_gguf: bool = field(default=False, compare=False)

    # The head that predicts several tokens at once is left where it is.
    derived_tensors = re.compile(Model.derived_tensors.pattern + r"|mtp\..*")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        made = read_folder(config, tensor_names, "qwen3_next", has_experts=True)
        return cls(made, joined_experts_of(tensor_names, "safetensors"))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        made = read_gguf(file, is_tiled=False, has_experts=True)
        return cls(made, joined_experts_of(file.names, "gguf"), "blk.0.ssm_in.weight" in file.names)

    def delta_sources(self) -> dict[str, Source]:
        delta = self.config.delta
        widths, shared = delta.group_widths, delta.num_heads // delta.num_key_heads
        qkv, z = (interleaved(delta.num_key_heads, widths, taken) for taken in ((0, 1, 2), (3,)))
        beta, alpha = (interleaved(delta.num_key_heads, (shared, shared), (part,)) for part in (0, 1))
        joined = self.is_joined_in_gguf
        return {
            "qkv": ("in_proj_qkvz", qkv, *(("ssm_in", qkv) if joined else ("attn_qkv", None))),
            "z": ("in_proj_qkvz", z, *(("ssm_in", z) if joined else ("attn_gate", None))),
            "beta": ("in_proj_ba", beta, "ssm_ba", beta),
            "alpha": ("in_proj_ba", alpha, "ssm_ba", alpha),
        }
