"""The Llama 4 architecture (Meta, "The Llama 4 herd", 2025), as it reads texts."""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVPages
from engine.backends.base.backend import Backends
from engine.backends.base.even_sums import normed
from engine.backends.base.operands import AttentionConstants, Picks
from engine.backends.base.token_layout import TokenLayout
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.experts import ExpertsConfig
from engine.models.parts.model import Model
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed.decoder import RoutedDecoder
from engine.models.parts.routing import Scoring
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, Part, Stored, with_folder_names, with_folder_prefixes
from engine.weights.tensors import Transposed, in_turn, rows

_CHUNK = 8192  # tokens that layers see which rotate, where a file does not say, and in GGUF files
_FLOOR, _GROWTH = 8192, 0.1  # of the queries of layers that do not rotate, in GGUF files
_INTERVAL = 4  # every fourth layer does not rotate, where a configuration does not list them, and in GGUF files
_NUM_EXPERTS_WITHOUT_NORMS = 128  # of Maverick, by which llama.cpp tells it from others
_PREFIX_WITH_PICTURES = "language_model."
# Where config.json says nothing; source: transformers' Llama4TextConfig.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 202_048, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16_384,
    "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 131_072, "rope_theta": 500_000.0, "num_local_experts": 16, "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 1, "attention_chunk_size": _CHUNK, "floor_scale": _FLOOR, "attn_scale": _GROWTH,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Llama4Config(ExpertsConfig):
    """A mixture's; a layer that does not rotate lets queries grow with their position."""

    norms_heads: bool  # in layers that rotate, whether heads of queries and keys are normed, without weights
    head_epsilon: float  # of those norms
    growth: float  # of the logarithm of how many times `floor_scale` tokens lie before a query
    floor_scale: int


@dataclass(frozen=True)
class Llama4(RoutedDecoder):
    """Layers that rotate see chunks of the text, and some that do not rotate see all; a token has one expert.

    Contexts are those of one chunk, within which all layers see the same.
    """

    config: Llama4Config
    can_be_split = False
    takes_adapters = False  # until norms behind the products are tried
    # Of a folder's tensors; it says nothing about the model itself.
    folder_prefix: str = field(default="", compare=False)

    is_paired_in_folder = True
    is_paired_in_gguf = True
    router_names: ClassVar[Names] = ("mlp.router", "ffn_gate_inp")
    shared_names: ClassVar[Mapping[str, Names]] = {
        "gate": ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
        "up": ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
        "down": ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
    }
    # The tensors that read pictures are left where they are.
    derived_tensors = re.compile(Model.derived_tensors.pattern + r"|(vision_model|multi_modal_projector)\..*")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of transformers' class for text, or those of the text in its class with pictures."""
        text = config.table("text_config")
        prefix = "" if text is None else _PREFIX_WITH_PICTURES
        config = (text or config).with_defaults(_DEFAULTS)
        if config.integer("num_experts_per_tok", least=1) != 1:
            raise config.error("num_experts_per_tok", "of this architecture it must be 1")
        if folder_config.read_flag(config, "attention_bias", False):
            raise config.error("attention_bias", "biases are not served for this architecture")
        renamed = {
            "moe_intermediate_size": config.value("intermediate_size"), "n_shared_experts": 1, "norm_topk_prob": False,
            "intermediate_size": config.value("intermediate_size_mlp"), "n_group": 1, "topk_group": 1,
        }  # fmt: skip
        config = config.with_values(renamed)
        outputs = {name.removeprefix(prefix) for name in tensor_names}
        usual = folder_config.read_decoder(config, outputs, "llama4_text", default_epsilon=1e-5)
        num_layers = usual.num_layers
        step = config.required_integer("interleave_moe_layer_step", least=1)
        with_experts = _read_list(config, "moe_layers", range(step - 1, num_layers, step), num_layers)
        if not with_experts:
            raise config.error("moe_layers", "no layer has experts")
        interval = config.integer("no_rope_layer_interval", least=1) or _INTERVAL
        rotates = [(layer + 1) % interval != 0 for layer in range(num_layers)]
        stated = config.value("no_rope_layers")
        if stated:
            if not isinstance(stated, list) or len(stated) != num_layers or any(each not in (0, 1) for each in stated):
                raise config.error("no_rope_layers", f"it must list 0 or 1 for each of {num_layers} layers")
            rotates = [each == 1 for each in stated]
        made = routed_config.read_folder(
            config, _within_chunk(usual, rotates, config.integer("attention_chunk_size", least=2)),
            scoring=Scoring.SIGMOID, has_choice_bias=False, experts_key="num_local_experts",
            dense_layers=[layer for layer in range(num_layers) if layer not in with_experts],
        )  # fmt: skip
        tunes = folder_config.read_flag(config, "attn_temperature_tuning", True)
        made = _with_norms(
            made, norms_heads=folder_config.read_flag(config, "use_qk_norm", True),
            growth=config.required_positive_number("attn_scale") if tunes else 0.0,
            floor_scale=config.required_integer("floor_scale", least=1),
        )  # fmt: skip
        return cls(made, folder_prefix=prefix)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file)
        has_chunks = file.fields.value("attention.sliding_window") != 0
        rotates = [not has_chunks or (layer + 1) % _INTERVAL != 0 for layer in range(usual.num_layers)]
        if file.fields.integer("expert_used_count") != 1:
            raise file.fields.error("expert_used_count", "of this architecture it must be 1")
        made = routed_config.read_gguf(
            file, _within_chunk(usual, rotates, _CHUNK if has_chunks else None), scoring=Scoring.SIGMOID
        )
        has_norms = made.num_experts != _NUM_EXPERTS_WITHOUT_NORMS
        return cls(_with_norms(made, norms_heads=has_norms, growth=_GROWTH, floor_scale=_FLOOR))

    def leaves(self) -> tuple[Leaf, ...]:
        """As `Decoder.leaves`, by the names that the folder has for them."""
        leaves = with_folder_names(super().leaves(), {".mlp.": ".feed_forward."})
        return with_folder_prefixes(leaves, {"": self.folder_prefix})

    def expert_parts(self, hidden: int, inner: int) -> tuple[Part, Part, Part]:
        """As `ExpertsDecoder.expert_parts`; a folder has two tensors of all experts, each turned."""
        before = "model.layers.{layer}.mlp.experts."
        halves = (rows(0, inner, 2 * inner), rows(inner, 2 * inner, 2 * inner))
        stored = (
            *(Stored(f"{before}gate_up_proj", in_turn(Transposed, half), 2 * inner, True) for half in halves),
            Stored(f"{before}down_proj", Transposed, is_transposed=True),
        )
        gate, up, down = (
            replace(part, stored={**part.stored, "safetensors": of_folder})
            for part, of_folder in zip(super().expert_parts(hidden, inner), stored, strict=True)
        )
        return gate, up, down

    def attend(
        self, x: jax.Array, kv: KVPages, params: Params, index: jax.Array, layout: TokenLayout, backends: Backends,
        constants: AttentionConstants,
    ) -> tuple[jax.Array, KVPages]:  # fmt: skip
        qkv = backends.products.norm_product(x, self.norm(params, "attention_norm"), params["qkv"], index, layout)
        return backends.attention(self._as_in_layer(qkv, index, layout), kv, index, layout, constants)

    def _as_in_layer(self, qkv: jax.Array, index: jax.Array, layout: TokenLayout) -> jax.Array:
        """Queries and keys normed, which a rotation does not change, or queries that have grown."""
        config, size = self.config, self.config.q_size + self.config.kv_size
        heads = qkv[:, :size].reshape(len(qkv), -1, config.head_dim).astype(jnp.float32)
        rotating = normed(heads, None, config.head_epsilon) if config.norms_heads else heads
        before = jnp.floor((layout.positions.astype(jnp.float32) + 1) / config.floor_scale)
        growth = jnp.log1p(before) * config.growth + 1
        is_query = jnp.arange(heads.shape[1]) < config.num_heads
        others = heads * jnp.where(is_query, growth[:, None], 1)[..., None]
        rotates = jnp.asarray(np.array(config.tables) >= 0)[index]
        made = jnp.where(rotates, rotating, others).reshape(len(qkv), -1).astype(qkv.dtype)
        return jnp.concatenate([made, qkv[:, size:]], axis=1)

    def expert_inputs(self, inputs: jax.Array, picks: Picks) -> tuple[jax.Array, Picks]:
        """Shares multiply what experts read."""
        return (inputs * picks.shares).astype(inputs.dtype), picks._replace(shares=jnp.ones_like(picks.shares))


def _with_norms(made: ExpertsConfig, *, norms_heads: bool, growth: float, floor_scale: int) -> Llama4Config:
    """The norms stand behind the rotation, whose magnitude they take away again, all but its part in their epsilon."""
    epsilon, (table,) = made.rms_norm_eps, made.rotary
    if norms_heads:
        epsilon, table = epsilon / table.magnitude**2, replace(table, magnitude=1.0)
    return Llama4Config(
        **{**vars(made), "rotary": (table,)}, norms_heads=norms_heads, head_epsilon=epsilon, growth=growth,
        floor_scale=floor_scale,
    )  # fmt: skip


def _read_list(config: JsonFile, key: str, default: Sequence[int], num_layers: int) -> frozenset[int]:
    """Layers that a configuration lists; raises ModelError."""
    layers = config.value(key)
    if layers is None:
        return frozenset(default)
    is_list = isinstance(layers, list) and all(isinstance(each, int) and 0 <= each < num_layers for each in layers)
    if not is_list:
        raise config.error(key, f"it must list layers, from 0 to {num_layers - 1}")
    return frozenset(layers)


def _within_chunk(usual: DecoderConfig, rotates: Sequence[bool], chunk: int | None) -> DecoderConfig:
    """The configuration of contexts of one chunk, in which only some layers rotate."""
    context_length = usual.context_length if chunk is None else min(usual.context_length, chunk)
    return replace(usual, context_length=context_length, tables=tuple(0 if each else -1 for each in rotates))
