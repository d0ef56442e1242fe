"""The Kimi Linear architecture (Kimi Team, "Kimi Linear", 2025): delta attention in most layers, latents in others."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVPages
from engine.backends.base.backend import Backends
from engine.backends.base.norms import of_layer
from engine.backends.base.operands import AttentionConstants, GatedDelta, Norm
from engine.backends.base.token_layout import TokenLayout
from engine.models.parts import gguf_config
from engine.models.parts.decoder import Names, in_layers
from engine.models.parts.hybrids import delta_config
from engine.models.parts.hybrids.delta_config import DeltaSizes, WithDeltaLayers
from engine.models.parts.hybrids.layers import Run, through_layers
from engine.models.parts.model import Carry
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed import latent_config
from engine.models.parts.routed.latent_config import LatentConfig, with_latents
from engine.models.parts.routed.latent_decoder import LatentDecoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored, with_folder_names
from engine.weights.tensors import AsVector, NegativeExponential, Squeezed, Transform, in_turn

_NAMES = {
    "model_max_length": "max_position_embeddings", "moe_renormalize": "norm_topk_prob", "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok", "num_shared_experts": "n_shared_experts",
    "num_experts": "n_routed_experts",
}  # fmt: skip
# Where config.json says nothing; source: transformers' KimiLinearConfig.
_DEFAULTS: dict[str, Any] = {
    "first_k_dense_replace": 1, "routed_scaling_factor": 2.446, "linear_head_dim": 128, "linear_num_heads": 32,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
_INTERVAL = 4  # every fourth layer behind the first has latents, where a configuration does not list them
_DENSE = "model.layers.0.mlp.gate_proj.weight"  # in folders that call only blocks with experts sparse


@dataclass(frozen=True, kw_only=True)
class KimiLinearConfig(WithDeltaLayers, LatentConfig):
    """A mixture's with latent attention in some layers, and delta attention in the others."""

    @property
    def product_inputs(self) -> dict[str, int]:
        """As `ModelConfig.product_inputs`."""
        return {**super().product_inputs, "delta gates": self.delta.key_dim}

    @property
    def joined_outputs(self) -> dict[str, int]:
        """As `ModelConfig.joined_outputs`."""
        return {**super().joined_outputs, "delta keys": self.delta.key_size, "delta gates": self.delta.key_dim}


class _Kind(NamedTuple):
    """What a layer's program depends on."""

    is_recurrent: bool
    is_dense: bool  # whether its feed-forward block has no experts


class _Places(NamedTuple):
    """The number of layers of each kind before a layer."""

    recurrent: int | jax.Array
    dense: int | jax.Array


class _Step(NamedTuple):
    """What all layers of a step read."""

    params: Params
    layout: TokenLayout
    backends: Backends
    attention: AttentionConstants
    delta: GatedDelta


@dataclass(frozen=True)
class KimiLinear(LatentDecoder):
    """Delta-nets whose states have a decay for each row; latent attention without rotation; routed experts."""

    config: KimiLinearConfig
    can_be_split = False
    # Whether a folder has blocks without experts under the name of those with some.
    is_all_sparse_in_folder: bool = field(default=False, compare=False)

    norms: ClassVar[Mapping[str, Names]] = {"mlp_norm": ("post_attention_layernorm", "ffn_norm")}
    expert_names: ClassVar[Mapping[str, Names]] = {
        "gate": ("mlp.experts.{expert}.w1", "ffn_gate_exps"),
        "up": ("mlp.experts.{expert}.w3", "ffn_up_exps"),
        "down": ("mlp.experts.{expert}.w2", "ffn_down_exps"),
    }

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        stated = {usual: config.value(own) for own, usual in _NAMES.items() if config.value(own) is not None}
        table = config.table("linear_attn_config")
        if table is not None:
            own = {"head_dim": "linear_head_dim", "num_heads": "linear_num_heads"}
            own["short_conv_kernel_size"] = "linear_conv_kernel_dim"
            stated |= {usual: table.value(name) for name, usual in own.items() if table.value(name) is not None}
        config = config.with_values(stated).with_defaults(_DEFAULTS)
        if config.flag("mla_use_nope") is False:
            raise config.error("mla_use_nope", "latents that rotate are not served for this architecture")
        if config.text("moe_router_activation_func") not in (None, "sigmoid"):
            raise config.error("moe_router_activation_func", 'of this architecture it must be "sigmoid"')
        usual, sizes = latent_config.read_folder(config, tensor_names, "kimi_linear")
        made = with_latents(routed_config.read_folder(config, usual), sizes)
        size = config.required_integer("linear_head_dim", least=1)
        delta = _delta_sizes(
            config.required_integer("linear_num_heads", least=1), size,
            config.required_integer("linear_conv_kernel_dim", least=1),
        )  # fmt: skip
        is_recurrent = _read_kinds(config, table, usual.num_layers)
        return cls(_with_delta(made, delta, is_recurrent), is_all_sparse_in_folder=_DENSE not in tensor_names)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        fields = file.fields
        usual, sizes = latent_config.read_gguf(file)
        routed = routed_config.read_gguf(file, usual, normalises_shares=True)
        heads = gguf_config.read_of_layers(file, "attention.head_count")
        assert heads is not None
        delta = _delta_sizes(
            heads, fields.required_integer("kda.head_dim", least=1), fields.required_integer("ssm.conv_kernel", least=1)
        )
        # Files state the heads of attention alone; those of delta attention follow from their decays.
        attends = gguf_config.has_of_layers(file, "attention.head_count_kv", usual.num_layers)
        first = next((layer for layer in range(usual.num_layers) if not attends[layer]), None)
        decays = None if first is None else file.tensor(f"blk.{first}.ssm_a")
        if decays is not None:
            delta = replace(delta, num_heads=int(np.prod(decays.shape)), num_key_heads=int(np.prod(decays.shape)))
        is_joined = any(name.endswith(".attn_kv_b.weight") for name in file.names)
        made = _with_delta(with_latents(routed, sizes), delta, tuple(not each for each in attends))
        return cls(made, is_joined)

    def leaves(self) -> tuple[Leaf, ...]:
        """As `Decoder.leaves`, by the names that folders have for blocks with experts."""
        leaves = super().leaves()
        dense = () if self.is_all_sparse_in_folder else tuple(leaf for leaf in leaves if leaf.name.startswith("dense_"))
        sparse = with_folder_names((leaf for leaf in leaves if leaf not in dense), {".mlp.": ".block_sparse_moe."})
        return sparse + dense

    def attention_leaves(self) -> list[Leaf]:
        """Of latent attention, and of the delta attention of the other layers."""
        config = self.config
        norm = self.norm_part(config.hidden_size, ("input_layernorm", "attn_norm"))
        attention = [Leaf("attention_norm", LeafKind.VECTOR, (norm,)), *super().attention_leaves()]
        delta = [Leaf("delta_input_norm", LeafKind.VECTOR, (norm,)), *self._delta_leaves()]
        return [
            *(replace(leaf, layers=config.attention_layers) for leaf in attention),
            *(replace(leaf, layers=config.recurrent_layers) for leaf in delta),
        ]

    def _delta_leaves(self) -> list[Leaf]:
        hidden, delta = self.config.hidden_size, self.config.delta
        size, rank, heads = delta.key_size, delta.key_dim, delta.num_heads

        def matrix(outputs: int, inputs: int, folder: str, gguf: str) -> Part:
            return in_layers((outputs, inputs), (f"self_attn.{folder}_proj", gguf))

        def vector(leaf: str, shape: tuple[int, ...], folder: str, gguf: str, *transforms: Transform | None) -> Leaf:
            of_folder, of_gguf = transforms or (None, None)
            stored = {
                "safetensors": Stored(f"model.layers.{{layer}}.self_attn.{folder}", of_folder),
                "gguf": Stored(f"blk.{{layer}}.{gguf}", of_gguf),
            }
            return Leaf(leaf, LeafKind.VECTOR, (Part(shape, stored),), is_exact=True)

        convolutions = [
            vector("", (size, delta.kernel), f"{kind}_conv1d.weight", f"ssm_conv1d_{kind}.weight", Squeezed, Squeezed)
            for kind in ("q", "k", "v")
        ]
        return [
            Leaf(
                "delta_qkv", LeafKind.MATRIX, tuple(matrix(size, hidden, kind, f"attn_{kind}") for kind in "qkv")
            ),
            Leaf(
                "delta_low", LeafKind.MATRIX,
                (matrix(rank, hidden, "f_a", "ssm_f_a"), matrix(rank, hidden, "g_a", "ssm_g_a")), is_exact=True,
            ),
            Leaf("delta_forget", LeafKind.MATRIX, (matrix(size, rank, "f_b", "ssm_f_b"),), is_exact=True),
            Leaf("delta_gate", LeafKind.MATRIX, (matrix(size, rank, "g_b", "ssm_g_b"),)),
            Leaf("delta_beta", LeafKind.MATRIX, (matrix(heads, hidden, "b", "ssm_beta"),), is_exact=True),
            Leaf(
                "delta_convolution", LeafKind.VECTOR, tuple(leaf.parts[0] for leaf in convolutions), is_exact=True
            ),
            vector("delta_decay", (heads,), "A_log", "ssm_a", in_turn(AsVector, NegativeExponential), AsVector),
            vector("delta_time_bias", (size,), "dt_bias", "ssm_dt.bias"),
            vector("delta_norm", (delta.value_dim,), "o_norm.weight", "ssm_norm.weight"),
            Leaf("delta_out", LeafKind.MATRIX, (matrix(hidden, size, "o", "attn_output"),)),
        ]  # fmt: skip

    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, backends: Backends
    ) -> tuple[jax.Array, KVPages]:
        """As `Decoder.forward`; layers come in runs of a pattern, as `through_layers` finds them."""
        config = self.config
        step = _Step(params, layout, backends, self.constants(params, layout), self._delta_constants(params))
        dense = frozenset(config.dense_layers)
        kinds = tuple(_Kind(config.is_recurrent[layer], layer in dense) for layer in range(config.num_layers))

        def counted(layers: tuple[_Kind, ...]) -> _Places:
            return _Places(sum(kind.is_recurrent for kind in layers), sum(kind.is_dense for kind in layers))

        def run_pattern(run: Run, index: jax.Array, carry: Carry) -> Carry:
            pattern = kinds[run.first : run.first + run.length]
            of_pattern = counted(pattern)
            for offset, kind in enumerate(pattern):
                before = counted(kinds[: run.first + offset])
                places = _Places(*(one + index * other for one, other in zip(before, of_pattern, strict=True)))
                carry = self._layer(kind, run.first + offset + index * run.length, places, carry, step)
            return carry

        carry: Carry = (self.embed(params, tokens, layout, backends.products), kv)
        return through_layers(kinds, run_pattern, carry)

    def _layer(self, kind: _Kind, layer: jax.Array, places: _Places, carry: Carry, step: _Step) -> Carry:
        """The residual stream and kv after a layer, of which so many of its kinds come before."""
        params, layout, backends, attention, _ = step
        (x, kv), products = carry, backends.products
        if kind.is_recurrent:
            x, kv = self._delta_layer(jnp.asarray(places.recurrent, jnp.int32), carry, step)
        else:
            place = layer - places.recurrent
            attended, kv = self.attend(x, kv, params, place, layout, backends, attention)
            x = products.add_product(x, attended, params["attention_output"], place, layout)
        if kind.is_dense:
            num_others = layer - places.dense
            return self.dense_feed_forward(x, params, layer, layout, products, num_others), kv
        return self.feed_forward(x, params, layer, layout, products, places.dense), kv

    def _delta_constants(self, params: Params) -> GatedDelta:
        sizes = self.config.delta
        return GatedDelta(
            num_key_heads=sizes.num_key_heads, num_heads=sizes.num_heads, key_dim=sizes.key_dim,
            value_dim=sizes.value_dim, convolution=params["delta_convolution"], decay=None, time_bias=None,
            norm=Norm(params["delta_norm"], self.config.rms_norm_eps), is_tiled=False, has_sigmoid_gates=True,
        )  # fmt: skip

    def _delta_layer(self, place: jax.Array, carry: Carry, step: _Step) -> Carry:
        """The delta attention of a layer, with a place among those that have it."""
        params, layout, backends, _, delta = step
        (x, kv), products, rank = carry, backends.products, self.config.delta.key_dim
        inputs = products.norm(x, Norm(params["delta_input_norm"], self.config.rms_norm_eps), place, layout)
        qkv, low, beta = (
            products.norm_product(inputs, None, params[name], place, layout)
            for name in ("delta_qkv", "delta_low", "delta_beta")
        )
        forget = products.norm_product(low[:, :rank], None, params["delta_forget"], place, layout)
        gates = products.norm_product(low[:, rank:], None, params["delta_gate"], place, layout)
        steps = jax.nn.softplus(forget.astype(jnp.float32) + of_layer(params["delta_time_bias"], place))
        decay = jnp.repeat(of_layer(params["delta_decay"], place), rank)
        qkvz = jnp.concatenate([qkv, gates.astype(qkv.dtype)], axis=1)
        made, kv = backends.recurrence(qkvz, beta, steps * decay, kv, place, layout, delta)
        return products.add_product(x, made, params["delta_out"], place, layout), kv


def _delta_sizes(num_heads: int, head_dim: int, kernel: int) -> DeltaSizes:
    return DeltaSizes(num_key_heads=num_heads, num_heads=num_heads, key_dim=head_dim, value_dim=head_dim, kernel=kernel)


def _read_kinds(config: JsonFile, table: JsonFile | None, num_layers: int) -> tuple[bool, ...]:
    """Which layers are recurrent; a published configuration counts layers from 1. Raises ModelError."""
    kinds, known = config.value("layer_types"), ("linear_attention", "full_attention")
    if kinds is None and table is not None and table.value("full_attn_layers") is not None:
        full = table.value("full_attn_layers")
        if not isinstance(full, list) or any(not isinstance(each, int) or not 0 < each <= num_layers for each in full):
            raise table.error("full_attn_layers", f"it must list layers, from 1 to {num_layers}")
        kinds = [known[layer + 1 in full] for layer in range(num_layers)]
    if kinds is None:
        kinds = [known[layer > 0 and layer % _INTERVAL == 0] for layer in range(num_layers)]
    return delta_config.read_kinds(config.with_values({"layer_types": kinds}), num_layers)


def _with_delta(made: LatentConfig, delta: DeltaSizes, is_recurrent: tuple[bool, ...]) -> KimiLinearConfig:
    """Attention does not rotate; tables and windows are those of the layers that have it."""
    num_attending = is_recurrent.count(False)
    made = replace(made, tables=(-1,) * num_attending, windows=(0,) * num_attending)
    return KimiLinearConfig(**vars(made), delta=delta, is_recurrent=is_recurrent)
