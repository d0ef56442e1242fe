"""The Llama architecture (Touvron et al., "LLaMA", 2023)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Self

import jax
import jax.numpy as jnp

from cache.storage import KVPages
from engine.kernels.interface.body import Bodies
from engine.kernels.interface.model_config import ModelConfig
from engine.kernels.interface.operands import Activation, AttentionConstants, Norm
from engine.kernels.interface.token_layout import TokenLayout
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.layers import Carry, in_every_layer, rotary_frequencies, rotations, run_layers
from engine.models.parts.model import Model
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Split, Stored
from engine.weights.tensors import Transform, paired_rows

_FOLDER_OUTPUT, _GGUF_OUTPUT = "lm_head.weight", "output.weight"


@dataclass(frozen=True)
class LlamaConfig(ModelConfig):
    """Sizes and constants of one model."""

    rope_theta: float
    rms_norm_eps: float
    has_output: bool = True  # a matrix of its own makes logits; else the embedding does (tied)


@dataclass(frozen=True)
class Llama(Model):
    """Pre-norm layers of attention and a gated feed-forward block, one after the other."""

    config: LlamaConfig

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of transformers' class of this architecture."""
        if config.text("model_type") not in (None, "llama"):
            raise config.error("model_type", 'this version serves "llama"')
        if config.text("hidden_act") not in (None, "silu"):
            raise config.error("hidden_act", 'this version serves "silu"')
        folder_config.refuse_quantised(config)
        for name in ("attention_bias", "mlp_bias"):
            if config.flag(name):
                raise config.error(name, "biases are not served")
        folder_config.refuse_other_rotations(config)
        return cls(
            LlamaConfig(
                **folder_config.read_sizes(config),
                rope_theta=folder_config.read_rope_theta(config),
                rms_norm_eps=folder_config.read_epsilon(config, "rms_norm_eps", 1e-6),
                # One that is stored is used, as in transformers.
                has_output=not config.flag("tie_word_embeddings") or _FOLDER_OUTPUT in tensor_names,
            )
        )

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """Reads the fields of the architecture "llama"."""
        sizes = gguf_config.read_sizes(file)
        gguf_config.refuse_other_rotations(file, sizes["head_dim"])
        return cls(
            LlamaConfig(
                **sizes,
                rope_theta=file.fields.positive_number("rope.freq_base") or 10000.0,
                rms_norm_eps=gguf_config.read_epsilon(file, "attention.layer_norm_rms_epsilon"),
                has_output=_GGUF_OUTPUT in file.names,
            )
        )

    def leaves(self) -> tuple[Leaf, ...]:
        """Eight, or nine with an output matrix."""
        config, hidden = self.config, self.config.hidden_size
        matrix, vector = LeafKind.MATRIX, LeafKind.VECTOR
        # GGUF files store queries and keys for a rotation of adjacent features.
        paired = paired_rows(config.head_dim)
        vocab = (config.vocab_size, hidden)
        queries = _in_layers((config.q_size, hidden), "self_attn.q_proj", "attn_q", paired)
        keys = _in_layers((config.kv_size, hidden), "self_attn.k_proj", "attn_k", paired)
        values = _in_layers((config.kv_size, hidden), "self_attn.v_proj", "attn_v")
        attended = _in_layers((hidden, config.q_size), "self_attn.o_proj", "attn_output")
        gate = _in_layers((config.intermediate_size, hidden), "mlp.gate_proj", "ffn_gate")
        up = _in_layers((config.intermediate_size, hidden), "mlp.up_proj", "ffn_up")
        down = _in_layers((hidden, config.intermediate_size), "mlp.down_proj", "ffn_down")
        embedding = _part(vocab, "model.embed_tokens.weight", gguf_config.EMBEDDING)
        leaves = (
            Leaf("embedding", LeafKind.EMBEDDING, (embedding,), Split.OUTPUTS, is_per_layer=False),
            Leaf("attention_norm", vector, (_in_layers((hidden,), "input_layernorm", "attn_norm"),)),
            Leaf("qkv", matrix, (queries, keys, values), Split.HEADS),
            Leaf("attention_output", matrix, (attended,), Split.INPUTS),
            Leaf("mlp_norm", vector, (_in_layers((hidden,), "post_attention_layernorm", "ffn_norm"),)),
            Leaf("gate_up", LeafKind.GATED, (gate, up), Split.OUTPUTS),
            Leaf("down", matrix, (down,), Split.INPUTS),
            Leaf(
                "output_norm", vector, (_part((hidden,), "model.norm.weight", "output_norm.weight"),),
                is_per_layer=False,
            ),
        )  # fmt: skip
        if not config.has_output:
            return leaves
        output = _part(vocab, _FOLDER_OUTPUT, _GGUF_OUTPUT)
        return (*leaves, Leaf("output", LeafKind.EMBEDDING, (output,), Split.OUTPUTS, is_per_layer=False))

    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, bodies: Bodies
    ) -> tuple[jax.Array, KVPages]:
        """As `Model.forward`; the hidden states are not yet normalised."""
        config, products = self.config, bodies.products
        attention_norm = Norm(params["attention_norm"], config.rms_norm_eps)
        mlp_norm = Norm(params["mlp_norm"], config.rms_norm_eps)
        constants = AttentionConstants(
            num_heads=config.num_heads,
            scale=config.head_dim**-0.5,
            rotations=rotations(layout.positions, rotary_frequencies(config.head_dim, config.rope_theta)),
            tables=in_every_layer(0, config.num_layers),
            windows=in_every_layer(0, config.num_layers),
        )

        def layer(index: jax.Array, carry: Carry) -> Carry:
            x, kv = carry
            qkv = products.norm_product(x, attention_norm, params["qkv"], index, layout)
            attended, kv = bodies.attention(qkv, kv, index, layout, constants)
            x = products.add_product(x, attended, params["attention_output"], index, layout)
            mixed = products.norm_product(
                x, mlp_norm, params["gate_up"], index, layout, activation=Activation.SILU, is_gated=True
            )
            return products.add_product(x, mixed, params["down"], index, layout), kv

        return run_layers(layer, config.num_layers, products.embed(params["embedding"], tokens, layout), kv)

    def logits(self, params: Params, hidden: jax.Array, sampled: jax.Array, bodies: Bodies) -> jax.Array:
        """As `Model.logits`."""
        norm = Norm(params["output_norm"], self.config.rms_norm_eps)
        weights = params["output" if self.config.has_output else "embedding"]
        return bodies.products.head_product(hidden, jnp.asarray(sampled), norm, weights)


def _part(shape: tuple[int, ...], folder_name: str, gguf_name: str, gguf_transform: Transform | None = None) -> Part:
    return Part(shape, {"safetensors": Stored(folder_name), "gguf": Stored(gguf_name, gguf_transform)})


def _in_layers(
    shape: tuple[int, ...], folder_name: str, gguf_name: str, gguf_transform: Transform | None = None
) -> Part:
    """A tensor of each layer."""
    return _part(
        shape, f"model.layers.{{layer}}.{folder_name}.weight", f"blk.{{layer}}.{gguf_name}.weight", gguf_transform
    )
