"""The Nomic BERT architectures (Nussbaum et al., "Nomic Embed", 2024; "Training Sparse Mixture Of Experts", 2025)."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from cache.storage import KVPages
from engine.backends.base.backend import Backends, Products
from engine.backends.base.norms import of_layer
from engine.backends.base.token_layout import TokenLayout
from engine.interface.errors import ModelError
from engine.models.parts import gguf_config
from engine.models.parts.encoders.encoder import Names
from engine.models.parts.encoders.encoder_config import EncoderConfig, read_sizes_of_encoder
from engine.models.parts.encoders.rotary_encoder import GATED_SILU, GELU, RotaryEncoder, prefix_of, read_gguf
from engine.models.parts.folder_config import read_epsilon
from engine.models.parts.hybrids.layers import Run, through_layers
from engine.models.parts.model import Carry
from engine.models.parts.rotary_config import read_rotary
from engine.models.parts.routing import Routing, pick
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored
from engine.weights.tensors import Transposed

_THETA = 1000.0
# The fields as published, and their names in transformers.
_NAMES = {
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_inner": "intermediate_size", "n_positions": "max_position_embeddings", "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}  # fmt: skip
# What the architecture can do besides, and the values that mean that it does not.
_UNUSED: dict[str, tuple[Any, ...]] = {
    "prenorm": (False,), "parallel_block": (False,), "use_rms_norm": (False, None), "causal": (False,),
    "qkv_proj_bias": (False,), "mlp_fc1_bias": (False,), "mlp_fc2_bias": (False,), "rotary_emb_fraction": (1.0,),
    "rotary_emb_interleaved": (False,), "rotary_emb_scale_base": (None,), "num_experts": (0,),
    "moe_every_n_layers": (0, -1), "activation_function": ("swiglu",),
}  # fmt: skip
# The same with experts.
_UNUSED_WITH_EXPERTS: dict[str, tuple[Any, ...]] = {
    **{name: values for name, values in _UNUSED.items() if name not in ("num_experts", "moe_every_n_layers")},
    "qkv_proj_bias": (True,), "mlp_fc1_bias": (True,), "mlp_fc2_bias": (True,), "activation_function": ("gelu",),
    "expert_choice_router": (False, None), "num_shared_experts": (0, None),
}  # fmt: skip
_EVERY = "moe_every_n_layers"
_EXPERT_BIAS = "mlp.experts.bias"  # of a layer, behind what its experts make; GGUF files leave it out


@dataclass(frozen=True, kw_only=True)
class NomicConfig(EncoderConfig, Routing):
    """An encoder's, some of whose layers may have experts."""

    expert_layers: tuple[int, ...] = ()
    has_expert_bias: bool = False

    @property
    def dense_layers(self) -> tuple[int, ...]:
        """The layers without experts."""
        return tuple(layer for layer in range(self.num_layers) if layer not in self.expert_layers)


@dataclass(frozen=True)
class NomicBert(RotaryEncoder):
    """A rotary encoder with gates and without biases; or with biases and without gates, and experts in some layers."""

    config: NomicConfig

    attention_name: ClassVar[str] = "attn"
    gate_and_up: ClassVar[Sequence[Names]] = (("mlp.fc12", "ffn_gate"), ("mlp.fc11", "ffn_up"))
    of_gguf: ClassVar[dict[str, Any]] = GATED_SILU

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = _as_in_transformers(config)
        if config.text("hidden_act") not in (None, "silu"):
            raise config.error("hidden_act", 'of this architecture it must be "silu"')
        sizes = read_sizes_of_encoder(config)
        # Beyond the positions of its training it needs a scaling of its own.
        most = config.integer("max_trained_positions", least=2) or sizes["context_length"]
        sizes["context_length"] = min(sizes["context_length"], most)
        every = _read_every(config)
        usual = EncoderConfig(
            **sizes,
            layer_norm_eps=read_epsilon(config, "layer_norm_eps", 1e-12),
            num_token_types=config.integer("type_vocab_size", least=1) or 2,
            rotary=(read_rotary(config, sizes["head_dim"], sizes["context_length"], default_theta=_THETA),),
            tables=(0,) * sizes["num_layers"],
            prefix=prefix_of(tensor_names),
            **(GELU if every else GATED_SILU),
        )
        if not every:
            return cls(NomicConfig(**vars(usual)))
        routing = Routing(
            num_experts=config.required_integer("num_experts", least=1),
            num_picked=config.required_integer("moe_top_k", least=1),
            normalises_shares=config.flag("moe_normalize_expert_weights") or False,
        )
        has_bias = any(name.endswith(_EXPERT_BIAS) for name in tensor_names)
        return cls(_with_experts(usual, routing, every, has_expert_bias=has_bias))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        every = gguf_config.read_count(file, _EVERY)
        if not every:
            return cls(NomicConfig(**vars(read_gguf(file, GATED_SILU))))
        routing = Routing(
            num_experts=file.fields.required_integer("expert_count", least=1),
            num_picked=file.fields.required_integer("expert_used_count", least=1),
        )
        return cls(_with_experts(read_gguf(file, GELU), routing, every))

    def leaves(self) -> tuple[Leaf, ...]:
        config, hidden, inner = self.config, self.config.hidden_size, self.config.intermediate_size
        leaves = super().leaves()
        if not config.expert_layers:
            return leaves
        router = self._in_layers((config.num_experts, hidden), ("mlp.router.layer", "ffn_gate_inp"))
        of_layers = [
            *(leaf for leaf in leaves if leaf.name.startswith("down")),
            *self._product("up", inner, hidden, ("mlp.fc1", "ffn_up")),
        ]
        of_experts = [
            Leaf("router", LeafKind.MATRIX, (router,), is_exact=True),
            Leaf("experts_up", LeafKind.MATRIX, (self._expert_part(False),), num_experts=config.num_experts),
            Leaf("experts_down", LeafKind.MATRIX, (self._expert_part(True),), num_experts=config.num_experts),
        ]
        if config.has_expert_bias:
            stored = {"safetensors": Stored(f"{config.prefix}{self.layer_name}.{{layer}}.{_EXPERT_BIAS}")}
            of_experts.append(Leaf("experts_bias", LeafKind.VECTOR, (Part((hidden,), stored),)))
        return (
            *(leaf for leaf in leaves if not leaf.name.startswith(("up", "down"))),
            *(replace(leaf, layers=config.dense_layers) for leaf in of_layers),
            *(replace(leaf, layers=config.expert_layers) for leaf in of_experts),
        )

    def _expert_part(self, is_down: bool) -> Part:
        """A matrix of an expert; a folder has those of all in one, that of downs turned."""
        config = self.config
        shape = (config.intermediate_size, config.hidden_size)
        folder = f"{config.prefix}{self.layer_name}.{{layer}}.mlp.experts.mlp."
        if is_down:
            in_folder = Stored(f"{folder}w2", Transposed, joined_shape=shape)
            return Part(shape[::-1], {"safetensors": in_folder, "gguf": Stored("blk.{layer}.ffn_down_exps.weight")})
        in_folder = Stored(f"{folder}w1", joined_shape=shape)
        return Part(shape, {"safetensors": in_folder, "gguf": Stored("blk.{layer}.ffn_up_exps.weight")})

    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, backends: Backends
    ) -> tuple[jax.Array, KVPages]:
        config, products = self.config, backends.products
        if not config.expert_layers:
            return super().forward(params, tokens, kv, layout, backends)
        constants, kinds = self.attention_constants(layout), [layer in config.expert_layers for layer in self._layers()]

        def run_pattern(run: Run, index: jax.Array, carry: Carry) -> Carry:
            pattern = kinds[run.first : run.first + run.length]
            for offset, has_experts in enumerate(pattern):
                layer = run.first + offset + index * run.length
                num_before = sum(kinds[: run.first + offset]) + index * sum(pattern)
                x, kv = self.attend(layer, carry, params, layout, backends, constants)
                if has_experts:
                    carry = self._with_experts(x, params, layer, num_before, layout, products), kv
                else:
                    carry = self.feed_forward(x, params, layer, layer - num_before, layout, products), kv
            return carry

        return through_layers(kinds, run_pattern, (self.embedded(params, tokens, layout, backends), kv))

    def _layers(self) -> range:
        return range(self.config.num_layers)

    def _with_experts(
        self, x: jax.Array, params: Params, index: jax.Array, place: jax.Array, layout: TokenLayout, products: Products
    ) -> jax.Array:
        """As `feed_forward`, of a layer with experts."""
        place = jnp.asarray(place, jnp.int32)
        scores = products.norm_product(x, None, params["router"], place, layout)
        made = products.add_experts(
            x, x, params["experts_up"], params["experts_down"], pick(scores, self.config), place, layout,
            activation=self.config.activation, is_gated=False,
        )  # fmt: skip
        if "experts_bias" in params:
            made = made + of_layer(params["experts_bias"], place).astype(made.dtype)
        return products.norm(made, self.norm_of(params, "mlp_norm"), index, layout)


def _with_experts(usual: EncoderConfig, routing: Routing, every: int, *, has_expert_bias: bool = False) -> NomicConfig:
    """The second of so many layers has experts; raises ModelError if none has."""
    routing.check()
    layers = tuple(layer for layer in range(usual.num_layers) if layer % every == 1)
    if not layers:
        raise ModelError(f"none of the {usual.num_layers} layers has experts")
    return NomicConfig(**vars(usual), **vars(routing), expert_layers=layers, has_expert_bias=has_expert_bias)


def _read_every(config: JsonFile) -> int:
    """The number of layers of which one has experts; 0 where none has any. Raises ModelError."""
    return 0 if config.value(_EVERY) in (0, -1) else config.integer(_EVERY, least=2) or 0


def _as_in_transformers(config: JsonFile) -> JsonFile:
    """A configuration with transformers' names; raises ModelError for parts that are not computed."""
    if "n_embd" not in config.names:
        return config
    for name, allowed in (_UNUSED_WITH_EXPERTS if _read_every(config) else _UNUSED).items():
        if name in config.names and config.value(name) not in allowed:
            raise config.error(name, f"of this architecture it must be {_listed(allowed)}")
    return config.with_values({new: config.value(old) for old, new in _NAMES.items() if old in config.names})


def _listed(values: Sequence[Any]) -> str:
    return " or ".join(map(repr, values))
