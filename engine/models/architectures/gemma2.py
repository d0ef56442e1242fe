"""The architecture Gemma 2 (Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size", 2024)."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVPages
from engine.kernels.interface.body import Bodies
from engine.kernels.interface.model_config import ModelConfig
from engine.kernels.interface.operands import Activation, AttentionConstants, Norm
from engine.kernels.interface.token_layout import TokenLayout
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.layers import Carry, normed, rotary_frequencies, rotations, run_layers
from engine.models.parts.model import Model
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Split, Stored
from engine.weights.tensors import OneMore

GGUF_OUTPUT = "output.weight"
LOCAL, GLOBAL = "sliding_attention", "full_attention"  # layers, in the words of transformers


@dataclass(frozen=True)
class Rotation:
    """The rotary embedding of some layers: theta is the base of its frequencies, which are divided by the factor."""

    theta: float = 10000.0
    factor: float = 1.0

    def frequencies(self, head_dim: int) -> np.ndarray:
        """float32[head_dim / 2], radians a position."""
        return rotary_frequencies(head_dim, self.theta) / np.float32(self.factor)


@dataclass(frozen=True)
class GemmaConfig(ModelConfig):
    """Sizes and constants of one model."""

    rms_norm_eps: float
    scale: float  # of the scores of attention
    is_local: tuple[bool, ...]  # of each layer: whether a query sees no further than the window
    window: int  # tokens, up to and with a query's own
    global_rotation: Rotation = Rotation()
    local_rotation: Rotation = Rotation()
    norms_heads: bool = False  # whether queries and keys are normed head by head
    score_softcap: float = 0.0  # 0: none
    logit_softcap: float = 0.0  # 0: none
    has_output: bool = False  # a matrix of its own makes logits; else the embedding does (tied)
    # In front of the names of a folder's layers; it says nothing of the model itself.
    folder_prefix: str = field(default="model.", compare=False)


@dataclass(frozen=True)
class Gemma2(Model):
    """Layers with a norm before and behind each block, every second of which sees a window of the context alone."""

    config: GemmaConfig

    # Where config.json is silent; source: transformers' Gemma2Config.
    defaults: ClassVar[dict[str, Any]] = {
        "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096, "tie_word_embeddings": True,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    }  # fmt: skip
    # Where a GGUF file is silent, as converters' files for the ggml project's runner may be.
    gguf_window: ClassVar[int] = 4096
    gguf_softcaps: ClassVar[tuple[float, float]] = (50.0, 30.0)
    period: ClassVar[int] = 2  # the last layer of so many is global
    num_layers_27b: ClassVar[int] = 46  # of the one size whose scores are scaled by another rule

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of transformers' class of this architecture."""
        config = config.with_defaults(cls.defaults)
        refuse_unserved(config)
        folder_config.refuse_other_rotations(config)
        rotation = Rotation(folder_config.read_rope_theta(config))
        return cls(
            GemmaConfig(
                **read_folder(config, cls.period),
                global_rotation=rotation,
                local_rotation=rotation,
                score_softcap=config.positive_number("attn_logit_softcapping") or 0.0,
                logit_softcap=config.positive_number("final_logit_softcapping") or 0.0,
                has_output=not config.flag("tie_word_embeddings") or "lm_head.weight" in tensor_names,
            )
        )

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """Reads the fields of the architecture "gemma2"."""
        sizes = gguf_config.read_sizes(file)
        gguf_config.refuse_other_rotations(file, sizes["head_dim"])
        fields = file.fields
        rotation = Rotation(fields.positive_number("rope.freq_base") or Rotation.theta)
        scores, logits = cls.gguf_softcaps
        return cls(
            GemmaConfig(
                **sizes,
                rms_norm_eps=gguf_config.read_epsilon(file, "attention.layer_norm_rms_epsilon"),
                scale=gguf_scale(file, sizes, cls.num_layers_27b),
                is_local=alternating(sizes["num_layers"], cls.period),
                window=fields.integer("attention.sliding_window") or cls.gguf_window,
                global_rotation=rotation,
                local_rotation=rotation,
                score_softcap=fields.positive_number("attn_logit_softcapping") or scores,
                logit_softcap=fields.positive_number("final_logit_softcapping") or logits,
                has_output=GGUF_OUTPUT in file.names,
            )
        )

    def leaves(self) -> tuple[Leaf, ...]:
        """Ten, and two where heads are normed, and one more with an output matrix."""
        config, hidden = self.config, self.config.hidden_size
        prefix = config.folder_prefix
        matrix = LeafKind.MATRIX

        def in_layers(shape: tuple[int, ...], folder_name: str, gguf_name: str) -> Part:
            name = f"{prefix}layers.{{layer}}.{folder_name}.weight"
            return _part(shape, name, f"blk.{{layer}}.{gguf_name}.weight")

        def norm(name: str, folder_name: str, gguf_name: str, size: int = hidden) -> Leaf:
            return Leaf(name, LeafKind.VECTOR, (in_layers((size,), folder_name, gguf_name),))

        queries = in_layers((config.q_size, hidden), "self_attn.q_proj", "attn_q")
        keys = in_layers((config.kv_size, hidden), "self_attn.k_proj", "attn_k")
        values = in_layers((config.kv_size, hidden), "self_attn.v_proj", "attn_v")
        attended = in_layers((hidden, config.q_size), "self_attn.o_proj", "attn_output")
        gate = in_layers((config.intermediate_size, hidden), "mlp.gate_proj", "ffn_gate")
        up = in_layers((config.intermediate_size, hidden), "mlp.up_proj", "ffn_up")
        down = in_layers((hidden, config.intermediate_size), "mlp.down_proj", "ffn_down")
        vocab = (config.vocab_size, hidden)
        embedding = _part(vocab, f"{prefix}embed_tokens.weight", gguf_config.EMBEDDING)
        last_norm = _part((hidden,), f"{prefix}norm.weight", "output_norm.weight")
        leaves = [
            Leaf("embedding", LeafKind.EMBEDDING, (embedding,), Split.OUTPUTS, is_per_layer=False),
            norm("attention_norm", "input_layernorm", "attn_norm"),
            Leaf("qkv", matrix, (queries, keys, values), Split.HEADS),
            Leaf("attention_output", matrix, (attended,), Split.INPUTS),
            norm("attended_norm", "post_attention_layernorm", "post_attention_norm"),
            norm("mlp_norm", "pre_feedforward_layernorm", "ffn_norm"),
            Leaf("gate_up", LeafKind.GATED, (gate, up), Split.OUTPUTS),
            Leaf("down", matrix, (down,), Split.INPUTS),
            norm("mixed_norm", "post_feedforward_layernorm", "post_ffw_norm"),
            Leaf("output_norm", LeafKind.VECTOR, (last_norm,), is_per_layer=False),
        ]
        if config.norms_heads:
            leaves += [
                norm("q_norm", "self_attn.q_norm", "attn_q_norm", config.head_dim),
                norm("k_norm", "self_attn.k_norm", "attn_k_norm", config.head_dim),
            ]
        if config.has_output:
            output = _part(vocab, f"{prefix.removesuffix('model.')}lm_head.weight", GGUF_OUTPUT)
            leaves.append(Leaf("output", LeafKind.EMBEDDING, (output,), Split.OUTPUTS, is_per_layer=False))
        return tuple(leaves)

    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, bodies: Bodies
    ) -> tuple[jax.Array, KVPages]:
        """As `Model.forward`; the hidden states are not yet normalised."""
        config, products = self.config, bodies.products

        def norm(name: str) -> Norm:
            return Norm(params[name], config.rms_norm_eps)

        table_of, windows = np.array(config.is_local, np.int32), np.where(config.is_local, config.window, 0)
        both = (config.global_rotation, config.local_rotation)
        if both[0] == both[1]:
            both, table_of = both[:1], np.zeros_like(table_of)
        constants = AttentionConstants(
            num_heads=config.num_heads,
            scale=config.scale,
            rotations=rotations(layout.positions, *(rotation.frequencies(config.head_dim) for rotation in both)),
            tables=table_of,
            windows=windows.astype(np.int32),
            softcap=config.score_softcap,
            q_norm=norm("q_norm") if config.norms_heads else None,
            k_norm=norm("k_norm") if config.norms_heads else None,
        )

        def layer(index: jax.Array, carry: Carry) -> Carry:
            x, kv = carry
            qkv = products.norm_product(x, norm("attention_norm"), params["qkv"], index, layout)
            attended, kv = bodies.attention(qkv, kv, index, layout, constants)
            attended = products.norm_product(attended, None, params["attention_output"], index, layout)
            x = x + normed(attended, norm("attended_norm"), index)
            mixed = products.norm_product(
                x, norm("mlp_norm"), params["gate_up"], index, layout,
                activation=Activation.GELU_TANH, is_gated=True,
            )  # fmt: skip
            mixed = products.norm_product(mixed, None, params["down"], index, layout)
            return x + normed(mixed, norm("mixed_norm"), index), kv

        embedded = products.embed(params["embedding"], tokens, layout, scale=config.hidden_size**0.5)
        return run_layers(layer, config.num_layers, embedded, kv)

    def logits(self, params: Params, hidden: jax.Array, sampled: jax.Array, bodies: Bodies) -> jax.Array:
        """As `Model.logits`."""
        norm = Norm(params["output_norm"], self.config.rms_norm_eps)
        weights = params["output" if self.config.has_output else "embedding"]
        return bodies.products.head_product(
            hidden, jnp.asarray(sampled), norm, weights, softcap=self.config.logit_softcap
        )


def refuse_unserved(config: JsonFile) -> None:
    """
    Raises:
        ModelError: the configuration asks for what neither Gemma 2 nor Gemma 3 is served with.
    """
    folder_config.refuse_quantised(config)
    if config.text("hidden_activation") not in (None, "gelu_pytorch_tanh"):
        raise config.error("hidden_activation", 'this version serves "gelu_pytorch_tanh"')
    if config.flag("attention_bias"):
        raise config.error("attention_bias", "biases are not served")
    if config.flag("use_bidirectional_attention"):
        raise config.error("use_bidirectional_attention", "attention that sees what comes later is not served")


def read_folder(config: JsonFile, period: int) -> dict[str, Any]:
    """The fields of a `GemmaConfig` that the folders of both versions state alike."""
    sizes = folder_config.read_sizes(config)
    return {
        **sizes,
        "rms_norm_eps": folder_config.read_epsilon(config, "rms_norm_eps", 1e-6),
        "scale": _scale(config.required_positive_number("query_pre_attn_scalar")),
        "is_local": _local_layers(config, sizes["num_layers"], period),
        "window": config.required_integer("sliding_window", least=1),
    }


def alternating(num_layers: int, period: int) -> tuple[bool, ...]:
    """Whether each layer is local where the last of every `period` layers is global."""
    return tuple((index + 1) % period != 0 for index in range(num_layers))


def gguf_scale(file: GGUFTensors, sizes: folder_config.Sizes, num_layers_27b: int) -> float:
    """The scale of the scores. Only a rule tells that of the 27B models: files do not state it."""
    is_27b = sizes["num_layers"] == num_layers_27b
    scalar = sizes["hidden_size"] // sizes["num_heads"] if is_27b else sizes["head_dim"]
    return file.fields.positive_number("attention.scale") or _scale(scalar)


def _scale(scalar: float) -> float:
    """As a float32, because that is what a GGUF file could hold."""
    return float(np.float32(scalar**-0.5))


def _local_layers(config: JsonFile, num_layers: int, period: int) -> tuple[bool, ...]:
    types = config.value("layer_types")
    if types is None:
        return alternating(num_layers, config.integer("sliding_window_pattern", least=1) or period)
    if not isinstance(types, list) or len(types) != num_layers or not all(kind in (LOCAL, GLOBAL) for kind in types):
        raise config.error("layer_types", f'it must name "{LOCAL}" or "{GLOBAL}" for each of {num_layers} layers')
    return tuple(kind == LOCAL for kind in types)


def _part(shape: tuple[int, ...], folder_name: str, gguf_name: str) -> Part:
    """A tensor; a folder holds the differences of norms from 1, a GGUF file their sums with it."""
    from_one = OneMore if len(shape) == 1 else None
    return Part(shape, {"safetensors": Stored(folder_name, from_one), "gguf": Stored(gguf_name)})
