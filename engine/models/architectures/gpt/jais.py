"""The Jais architecture (Sengupta et al., "Jais and Jais-chat", 2023)."""

import dataclasses
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import ClassVar, Self

from engine.backends.base.operands import NormKind
from engine.models.architectures.gpt.folder_form import FOLDER_NAMES, LAYER_SIZES
from engine.models.architectures.gpt.joined_qkv import JoinedQkvDecoder
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.alibi import MOST_BIAS, with_alibi
from engine.models.parts.decoder import Decoder, Names, in_layers
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.rotary import NO_ROTARY
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf, Part
from engine.weights.tensors import ModelTensor, Transform, Transposed, in_turn, rows

_GATES = {"gate": ("mlp.c_fc2", "ffn_gate"), "up": ("mlp.c_fc", "ffn_up")}
_DOWN: Names = ("mlp.c_proj", "ffn_down")


@dataclass(frozen=True)
class Jais(JoinedQkvDecoder):
    """GPT-2's layers with gates, scores that fall with distance, and the scales of maximal update parametrisation."""

    norms: ClassVar[Mapping[str, Names]] = {"attention_norm": ("ln_1", "attn_norm"), "mlp_norm": ("ln_2", "ffn_norm")}
    output_norm_names: ClassVar[Names] = ("model.ln_f", "output_norm")
    attention_output_names: ClassVar[Names] = ("attn.c_proj", "attn_output")
    qkv_names: ClassVar[Names] = ("attn.c_attn", "attn_qkv")
    folder_names: ClassVar[Mapping[str, str]] = FOLDER_NAMES
    norm_kind = NormKind.LAYER
    has_norm_bias = True

    # Masks and slopes, which follow from the sizes.
    derived_tensors = re.compile(r"transformer\.(h\.\d+\.attn\.(bias|masked_bias)|relative_pe\.slopes)")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if config.text("activation_function") not in (None, "swiglu"):
            raise config.error("activation_function", 'of this architecture it must be "swiglu"')
        if config.text("position_embedding_type") != "alibi":
            raise config.error("position_embedding_type", 'it must be "alibi"')
        for key, is_usual in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
            if config.flag(key) not in (None, is_usual):
                raise config.error(key, "scores that are scaled in another way are not served")
        renamed = {name: config.value(old) for name, old in LAYER_SIZES.items()}
        inner = config.integer("n_inner", least=1) or 4 * config.required_integer("n_embd", least=1)
        usual = folder_config.read_decoder(
            config.with_values({**renamed, "intermediate_size": inner}), tensor_names, "jais",
            rotary=NO_ROTARY, is_tied=True, epsilon_key="layer_norm_epsilon", default_epsilon=1e-5,
        )  # fmt: skip
        scales_by_size = config.flag("mup_scale_qk_dot_by_d") or config.flag("scale_qk_dot_by_d")
        scaled = dataclasses.replace(
            usual,
            attention_scale=1.0 / usual.head_dim if scales_by_size else usual.attention_scale,
            embedding_scale=_multiplier(config, "mup_embeddings_scale", "embeddings_scale"),
            logit_scale=config.positive_number("width_scale")
            or _multiplier(config, "mup_output_alpha") * _multiplier(config, "mup_width_scale"),
        )
        return cls(_with_biases(scaled, MOST_BIAS))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """Files have the scales of embeddings and logits in the weights."""
        usual = gguf_config.read_decoder(file, rotary=NO_ROTARY, epsilon_key="attention.layer_norm_epsilon")
        scaled = dataclasses.replace(usual, attention_scale=1.0 / usual.head_dim)
        most_bias = gguf_config.read_multiplier(file, "attention.max_alibi_bias", MOST_BIAS)
        return cls(_with_biases(scaled, most_bias))

    def attention_leaves(self) -> list[Leaf]:
        return [_transposed(leaf) if leaf.name == "attention_output" else leaf for leaf in super().attention_leaves()]

    def feed_forward_leaves(self) -> list[Leaf]:
        leaves = []
        for leaf in Decoder.feed_forward_leaves(self):
            if leaf.name.startswith("down"):
                part = in_layers(leaf.parts[0].shape, _DOWN, suffix="bias" if leaf.name == "down_bias" else "weight")
                leaf = dataclasses.replace(leaf, parts=(part,))
            leaves.append(leaf if leaf.name.endswith("bias") else _transposed(leaf))
        return leaves

    def gate_up_parts(self, inputs: int | None) -> tuple[Part, ...]:
        size = self.config.intermediate_size
        return tuple(
            in_layers(
                (size,) if inputs is None else (size, inputs), names, suffix="bias" if inputs is None else "weight"
            )
            for names in _GATES.values()
        )

    mixed = Decoder.mixed

    def qkv_transform(self, index: int) -> Transform:
        """A folder has matrices as [inputs, outputs]: all queries, then all keys, then all values."""
        size = self.config.q_size
        return in_turn(_as_outputs, rows(index * size, (index + 1) * size, 3 * size))


def _as_outputs(tensor: ModelTensor) -> ModelTensor:
    """A matrix that a folder holds as [inputs, outputs], or a vector."""
    return Transposed(tensor) if len(tensor.shape) == 2 else tensor


def _transposed(leaf: Leaf) -> Leaf:
    def of_part(part: Part) -> Part:
        stored = dataclasses.replace(part.stored["safetensors"], transform=Transposed)
        return dataclasses.replace(part, stored={**part.stored, "safetensors": stored})

    return dataclasses.replace(leaf, parts=tuple(map(of_part, leaf.parts)))


def _multiplier(config: JsonFile, *names: str) -> float:
    """The first of these numbers that the configuration has; 1 without one."""
    return next((number for name in names if (number := config.positive_number(name)) is not None), 1.0)


def _with_biases(usual: DecoderConfig, most_bias: float) -> DecoderConfig:
    biased = dataclasses.replace(usual, has_qkv_bias=True, has_attention_output_bias=True, has_mlp_bias=True)
    return with_alibi(biased, most_bias=most_bias)
