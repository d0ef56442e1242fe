"""Encoders that descend from BERT whose queries and keys are rotated, in the layout of flash-attention's BERT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from engine.backends.base.operands import Activation
from engine.models.parts import gguf_config
from engine.models.parts.encoders.encoder import Encoder, Names
from engine.models.parts.encoders.encoder_config import EncoderConfig, num_rows
from engine.models.parts.rotary_config import read_rotary_of_gguf
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.leaf import Leaf, LeafKind

_PREFIXES = ("", "bert.", "nomic_bert.", "roberta.")


@dataclass(frozen=True)
class RotaryEncoder(Encoder):
    """BERT without learned positions; queries, keys and values are one tensor."""

    layer_name: ClassVar[str] = "encoder.layers"
    attention_name: ClassVar[str]  # in a folder, of the block
    gate_and_up: ClassVar[Sequence[Names]]  # the matrices of the first product of a feed-forward block
    of_gguf: ClassVar[dict[str, Any]]  # what its files do not say

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(read_gguf(file, cls.of_gguf))

    def leaves(self) -> tuple[Leaf, ...]:
        config, hidden, inner = self.config, self.config.hidden_size, self.config.intermediate_size
        words = self._part((config.vocab_size, hidden), ("embeddings.word_embeddings", "token_embd"))
        types = self._part((config.num_token_types, hidden), ("embeddings.token_type_embeddings", "token_types"))
        kind = LeafKind.GATED if config.is_gated else LeafKind.MATRIX
        return (
            Leaf("embedding", LeafKind.EMBEDDING, (words,), is_per_layer=False),
            Leaf("token_types", LeafKind.VECTOR, (types,), is_per_layer=False),
            *self._norm("embedding_norm", ("emb_ln", "token_embd_norm"), is_per_layer=False),
            *self._product("qkv", 3 * hidden, hidden, (f"{self.attention_name}.Wqkv", "attn_qkv")),
            *self._product("attention_output", hidden, hidden, (f"{self.attention_name}.out_proj", "attn_output")),
            *self._norm("attention_norm", ("norm1", "attn_output_norm")),
            *self._product("up", inner, hidden, *self.gate_and_up, kind=kind),
            *self._product("down", hidden, inner, ("mlp.fc2", "ffn_down")),
            *self._norm("mlp_norm", ("norm2", "layer_output_norm")),
        )


def read_gguf(file: GGUFTensors, more: Mapping[str, Any]) -> EncoderConfig:
    """The configuration in a GGUF file, with `more` that it does not say; raises ModelError."""
    if file.fields.value("attention.causal") is True:
        raise file.fields.error("attention.causal", "an encoder sees its whole text")
    sizes = gguf_config.read_sizes(file)
    return EncoderConfig(
        **sizes,
        layer_norm_eps=gguf_config.read_epsilon(file, "attention.layer_norm_epsilon"),
        num_token_types=num_rows(file, "token_types.weight"),
        rotary=(read_rotary_of_gguf(file, sizes["head_dim"], sizes["context_length"]),),
        tables=(0,) * sizes["num_layers"],
        **more,
    )


def prefix_of(tensor_names: Set[str]) -> str:
    """What stands before the names of the tensors of such an encoder in a folder."""
    return next((prefix for prefix in _PREFIXES if f"{prefix}emb_ln.weight" in tensor_names), "")


GELU: dict[str, Any] = {"activation": Activation.GELU_ERF}
GATED_SILU: dict[str, Any] = {"activation": Activation.SILU, "is_gated": True, "has_biases": False}
