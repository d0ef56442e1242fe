"""Qwen3-VL with experts (Qwen Team, "Qwen3-VL Technical Report", 2025): Qwen3's mixture, M-RoPE, and pictures."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Self

from engine.models.architectures.seeing.mrope import read_mrope, read_mrope_of_gguf
from engine.models.architectures.seeing.qwen3_vl import SECTIONS, THETA
from engine.models.architectures.seeing.seeing_decoder import SeeingDecoder, text_of, text_prefix
from engine.models.encoders.qwen.qwen3_vision import Qwen3Vision
from engine.models.parts import experts, folder_config
from engine.models.parts.decoder import QueryKeyNorm
from engine.models.parts.experts import ExpertsDecoder
from engine.models.parts.routed.joined_experts import with_stored
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Part, Stored
from engine.weights.tensors import Transform, Transposed, in_turn, rows

# Where config.json says nothing; source: transformers' Qwen3VLMoeTextConfig.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 128_000,
    "moe_intermediate_size": 1408, "num_experts_per_tok": 4,
}  # fmt: skip
_NUM_EXPERTS = 60  # likewise
_EXPERTS = "model.layers.{layer}.mlp.experts."


@dataclass(frozen=True)
class Qwen3VLMoe(SeeingDecoder, ExpertsDecoder):
    """Qwen3's attention and experts, with tokens of pictures that are rotated by their rows and columns."""

    query_key_norm = QueryKeyNorm.HEAD

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        text = text_of(config, ("qwen3_vl_moe_text",)).with_defaults(_DEFAULTS)
        if not {"num_experts", "num_local_experts"} & set(text.names):
            text = text.with_values({"num_experts": _NUM_EXPERTS})
        experts.refuse_layers_without_experts(text)
        rotary = read_mrope(
            text, folder_config.read_sizes(text)["head_dim"],
            default_theta=THETA, default_sections=SECTIONS, is_interleaved=True,
        )  # fmt: skip
        usual = folder_config.read_decoder(text, tensor_names, "qwen3_vl_moe", rotary=rotary)
        inner = text.required_integer("moe_intermediate_size", least=1)
        usual = dataclasses.replace(usual, intermediate_size=inner)
        made = experts.read_folder(text, usual, normalises_shares=True)
        return cls(made, text_prefix(tensor_names), Qwen3Vision.read(config, tensor_names, usual.hidden_size))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        made = experts.read_gguf(file, normalises_shares=True)
        rotary = read_mrope_of_gguf(file, made.rotary[0], is_interleaved=True)
        return cls(dataclasses.replace(made, rotary=(rotary,)))

    def expert_parts(self, hidden: int, inner: int) -> tuple[Part, Part, Part]:
        """As `ExpertsDecoder.expert_parts`, with the gate and the up in one tensor.

        The folders that Qwen published have matrices [inputs, outputs], those that transformers 5 saves have others.
        Where a shape fits both it is of the second, as transformers takes it.
        """
        halves = (rows(0, inner, 2 * inner), rows(inner, 2 * inner, 2 * inner))
        gate, up = (_stored("gate_up_proj", half, 2 * inner) for half in halves)
        return with_stored(super().expert_parts(hidden, inner), "safetensors", (gate, up, _stored("down_proj")))


def _stored(name: str, taken: Transform | None = None, num_outputs: int | None = None) -> Stored:
    turned = Transposed if taken is None else in_turn(Transposed, taken)
    published = Stored(_EXPERTS + name, turned, num_outputs, is_transposed=True)
    return Stored(_EXPERTS + name, taken, num_outputs, otherwise=published)
