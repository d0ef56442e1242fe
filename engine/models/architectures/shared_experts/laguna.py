"""The architecture of Laguna (Poolside, "Laguna XS.2 and M.1", 2026)."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVPages
from engine.backends.base.backend import Backends
from engine.backends.base.operands import AttentionConstants
from engine.backends.base.token_layout import TokenLayout
from engine.interface.errors import ModelError
from engine.models.parts import folder_config, gguf_config, rotary
from engine.models.parts.decoder import QueryKeyNorm, in_layers
from engine.models.parts.experts import ExpertsConfig
from engine.models.parts.hybrids.layers import Run, through_layers
from engine.models.parts.model import Carry
from engine.models.parts.rotary import Rotary, rotation_tables
from engine.models.parts.rotary_config import read_rotary, read_rotary_dim, read_rotary_of_gguf
from engine.models.parts.routed import config as routed_config
from engine.models.parts.routed.decoder import RoutedDecoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Split

_PERIOD = 4  # the first of so many layers sees all, where a GGUF file with windows does not say
_KINDS = ("full", "local")  # of layers, in the names of leaves: without a window, and with one
# Of each kind, the rotation where config.json says nothing; source: transformers' LagunaConfig.
_ROTATIONS: dict[str, dict[str, Any]] = {
    "full_attention": {"rope_theta": 500_000.0, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
}
_PUBLISHED_BIAS = "mlp.experts.e_score_correction_bias"  # transformers has it beside the router


class LayerKind(NamedTuple):
    """What a layer's program depends on."""

    is_local: bool  # whether it has a window
    is_dense: bool  # whether it has no experts
    limit: float = 0.0  # above 0, that of its experts' gates and ups
    shared_limit: float = 0.0  # the same of the shared expert


@dataclass(frozen=True, kw_only=True)
class LagunaConfig(ExpertsConfig):
    """A mixture's, in which `num_heads` and the first rotary embedding are those of layers that see all."""

    num_local_heads: int  # of queries in layers with a window
    gates_features: bool = False  # whether each feature of a head has a gate of its own

    def heads_of(self, *, is_local: bool) -> int:
        """Heads of queries."""
        return self.num_local_heads if is_local else self.num_heads

    def layers_of(self, *, is_local: bool) -> tuple[int, ...]:
        return tuple(layer for layer, window in enumerate(self.windows) if (window > 0) == is_local)

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """The kind of each layer."""
        dense = frozenset(self.dense_layers)
        return tuple(LayerKind(window > 0, layer in dense) for layer, window in enumerate(self.windows))

    @property
    def product_inputs(self) -> dict[str, int]:
        """As `ModelConfig.product_inputs`."""
        return {**super().product_inputs, "queries of layers with windows": self.num_local_heads * self.head_dim}


@dataclass(frozen=True)
class Laguna(RoutedDecoder):
    """Gated attention with norms of heads; layers with windows have heads and a rotation of their own.

    Routed and shared experts behind the first layers.
    """

    config: LagunaConfig
    # The names of biases of choice and of shared experts in a folder; they say nothing about the model itself.
    has_published_names: bool = field(default=False, compare=False)

    can_be_split: ClassVar[bool] = False
    takes_adapters: ClassVar[bool] = False  # until gates are tried
    query_key_norm = QueryKeyNorm.HEAD

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if folder_config.read_flag(config, "attention_bias", False):
            raise config.error("attention_bias", "biases are not served for this architecture")
        if config.flag("moe_apply_router_weight_on_input"):
            raise config.error("moe_apply_router_weight_on_input", "shares of inputs are not served")
        if config.number("moe_router_logit_softcapping"):
            raise config.error("moe_router_logit_softcapping", "scores of experts that are capped are not served")
        full, local = read_rotaries(config)
        usual = folder_config.read_decoder(config, tensor_names, "laguna", rotary=full)
        windows = folder_config.read_windows(config, [False] * usual.num_layers, default=512)
        dense = routed_config.read_kinds(config, usual.num_layers)
        shared_size = config.required_integer("shared_expert_intermediate_size", least=1)
        values = {"norm_topk_prob": True, "routed_scaling_factor": config.value("moe_routed_scaling_factor")}
        made = routed_config.read_folder(
            config.with_values(values), usual, experts_key="num_experts", dense_layers=(0,) if dense is None else dense
        )
        return cls(
            with_local_heads(
                replace(made, shared_size=shared_size), windows, local, _read_heads(config, usual.num_heads, windows),
                gates_features=_read_gates(config),
            ),
            any(name.endswith(_PUBLISHED_BIAS) for name in tensor_names),
        )  # fmt: skip

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        fields = file.fields
        num_layers = fields.required_integer("block_count", least=1)
        heads = fields.value("attention.head_count")
        if not isinstance(heads, list):
            heads = [fields.required_integer("attention.head_count", least=1)] * min(num_layers, len(file.names))
        if len(heads) != num_layers or any(not isinstance(each, int) or each < 1 for each in heads):
            raise fields.error("attention.head_count", f"it must list the heads of {num_layers} layers")
        windows = (0,) * num_layers
        if gguf_config.read_window(file):
            windows = _read_windows_of_gguf(file, num_layers)
        of_kinds = heads_of_kinds(heads, windows)
        if of_kinds is None:
            raise fields.error("attention.head_count", "layers of one kind must have the same number")
        sizes = gguf_config.read_sizes_of(
            file, num_heads=of_kinds[0], num_kv_heads=gguf_config.read_of_layers(file, "attention.head_count_kv"),
            intermediate_size=fields.required_integer("feed_forward_length", least=1),
        )  # fmt: skip
        if sizes["num_layers"] != num_layers:
            raise fields.error("nextn_predict_layers", "it is not served of this architecture")
        head_dim, context = sizes["head_dim"], sizes["context_length"]
        dims = [fields.integer(f"rope.dimension_count{suffix}") or head_dim for suffix in ("", "_swa")]
        for dim, suffix in zip(dims, ("", "_swa"), strict=True):
            if dim % 2 or dim > head_dim:
                raise fields.error(f"rope.dimension_count{suffix}", f"it must be even and at most {head_dim}")
        full = read_rotary_of_gguf(file, dims[0], context)
        theta = fields.positive_number("rope.freq_base_swa") or fields.positive_number("rope.freq_base") or 10_000.0
        usual = gguf_config.decoder_of(file, sizes, full)
        made = routed_config.read_gguf(file, usual, normalises_shares=True)
        gates = file.tensor("blk.0.attn_gate.weight")
        gates_features = gates is not None and gates.shape[0] == heads[0] * head_dim
        return cls(
            with_local_heads(made, windows, rotary.plain(dims[1], theta), of_kinds[1], gates_features=gates_features)
        )

    def leaves(self) -> tuple[Leaf, ...]:
        leaves = super().leaves()
        return tuple(leaf.renamed("safetensors", _published) for leaf in leaves) if self.has_published_names else leaves

    def attention_leaves(self) -> list[Leaf]:
        """Those of each kind of layer, and the norms of heads of all."""
        config, hidden, leaves = self.config, self.config.hidden_size, list[Leaf]()
        for is_local, kind in enumerate(_KINDS):
            layers, num_heads = config.layers_of(is_local=bool(is_local)), config.heads_of(is_local=bool(is_local))
            if not layers:
                continue
            q_size = num_heads * config.head_dim
            gates = in_layers(
                (q_size if config.gates_features else num_heads, hidden), ("self_attn.g_proj", "attn_gate")
            )
            of_kind = [
                Leaf(f"qkv_{kind}", LeafKind.MATRIX, self._parts_of(num_heads, hidden), Split.HEADS),
                Leaf(f"gates_{kind}", LeafKind.MATRIX, (gates,), is_exact=True),
                Leaf(f"output_{kind}", LeafKind.MATRIX, (in_layers((hidden, q_size), self.attention_output_names),)),
            ]
            leaves += [replace(leaf, layers=layers) for leaf in of_kind]
        norms = {kind: self.query_key_norm_names[kind] for kind in ("q", "k")}
        return leaves + [
            leaf for kind, names in norms.items() for leaf in self.norm_leaves(f"{kind}_norm", config.head_dim, names)
        ]

    def _parts_of(self, num_heads: int, hidden: int) -> tuple[Part, ...]:
        """Queries, keys and values of layers with so many heads of queries."""
        return replace(self, config=replace(self.config, num_heads=num_heads)).qkv_parts(hidden)

    def forward(
        self, params: Params, tokens: jax.Array, kv: KVPages, layout: TokenLayout, backends: Backends
    ) -> tuple[jax.Array, KVPages]:
        """As `Decoder.forward`; layers come in runs of a pattern, as `through_layers` finds them."""
        kinds = self.config.kinds
        constants = tuple(self._constants_of(params, layout, is_local=is_local) for is_local in (False, True))

        def run_pattern(run: Run, index: jax.Array, carry: Carry) -> Carry:
            pattern = kinds[run.first : run.first + run.length]
            for offset, kind in enumerate(pattern):
                before, layer = kinds[: run.first + offset], run.first + offset + index * run.length
                attends, mixes = (
                    sum(each[field] == kind[field] for each in before)
                    + index * sum(each[field] == kind[field] for each in pattern)
                    for field in range(2)
                )
                carry = self._layer(
                    carry, kind, layer, attends, mixes, params, layout, backends, constants[kind.is_local]
                )
            return carry

        carry: Carry = (self.embed(params, tokens, layout, backends.products), kv)
        return through_layers(kinds, run_pattern, carry)

    def _constants_of(self, params: Params, layout: TokenLayout, *, is_local: bool) -> AttentionConstants:
        """The constants of attention in layers of a kind."""
        config = self.config
        return replace(
            self.constants(params, layout),
            num_heads=config.heads_of(is_local=is_local),
            rotations=rotation_tables(layout.positions, config.rotary[int(is_local) :][:1]),
            tables=np.zeros(config.num_layers, np.int32),
        )

    def rotations(self, layout: TokenLayout) -> jax.Array:
        """Those of layers that see all; tables of one step are equally wide."""
        return rotation_tables(layout.positions, self.config.rotary[:1])

    def _layer(
        self, carry: Carry, kind: LayerKind, layer: jax.Array, attends: jax.Array, mixes: jax.Array, params: Params,
        layout: TokenLayout, backends: Backends, constants: AttentionConstants,
    ) -> Carry:  # fmt: skip
        """After a layer, with its places among those that attend, and that mix, as it does."""
        (x, kv), products, name = carry, backends.products, _KINDS[kind.is_local]
        norm = self.norm(params, "attention_norm")
        assert norm is not None
        inputs = products.norm(x, norm, layer, layout)
        qkv = products.norm_product(inputs, None, params[f"qkv_{name}"], attends, layout)
        gates = products.norm_product(inputs, None, params[f"gates_{name}"], attends, layout)
        attended, kv = backends.attention(qkv, kv, layer, layout, constants)
        x = products.add_product(x, self._gated(attended, gates), params[f"output_{name}"], attends, layout)
        block = self.for_kind(kind)
        feed_forward = block.dense_feed_forward if kind.is_dense else block.feed_forward
        return feed_forward(x, params, layer, layout, products, num_others=layer - mixes), kv

    def for_kind(self, kind: LayerKind) -> Self:
        """The model as it computes the feed-forward blocks of a kind of layer."""
        return self

    def opened(self, gates: jax.Array) -> jax.Array:
        """What the outputs of attention are multiplied with, of the float32 outputs of the gates."""
        return jax.nn.softplus(gates)

    def _gated(self, attended: jax.Array, gates: jax.Array) -> jax.Array:
        """What attention makes times its gates, of which each head, or each of its features, has one."""
        opened = self.opened(gates.astype(jnp.float32))
        if not self.config.gates_features:
            opened = jnp.repeat(opened, self.config.head_dim, axis=1)
        return (attended * opened).astype(attended.dtype)


def _published(name: str) -> str:
    return name.replace("mlp.gate.e_score_correction_bias", _PUBLISHED_BIAS).replace(
        "mlp.shared_experts.", "mlp.shared_expert."
    )


def read_rotaries(config: JsonFile) -> tuple[Rotary, Rotary]:
    """The rotary embeddings of layers without and with a window; raises ModelError."""
    head_dim, context = (folder_config.read_sizes(config)[key] for key in ("head_dim", "context_length"))
    tables, made = config.table("rope_parameters"), []
    for kind, usual in _ROTATIONS.items():
        table = None if tables is None else tables.table(kind)
        table = (config.with_values(dict.fromkeys(config.names)) if table is None else table).with_defaults(usual)
        made.append(read_rotary(config, read_rotary_dim(table, head_dim), context, table=table))
    return made[0], made[1]


def _read_heads(config: JsonFile, num_heads: int, windows: Sequence[int]) -> int:
    """Heads of queries in layers with a window; those that see all must have `num_heads`. Raises ModelError."""
    key = "num_attention_heads_per_layer"
    heads = config.value(key)
    if heads is None:
        return num_heads
    if not isinstance(heads, list) or len(heads) != len(windows) or any(type(each) is not int for each in heads):
        raise config.error(key, f"it must list the heads of {len(windows)} layers")
    of_kinds = heads_of_kinds(heads, windows)
    if of_kinds is None or of_kinds[1] < 1:
        raise config.error(key, "layers of one kind must have the same number, at least 1")
    if not all(windows) and of_kinds[0] != num_heads:
        raise config.error(key, f"layers that see all must have num_attention_heads ({num_heads})")
    return of_kinds[1]


def heads_of_kinds(heads: Sequence[int], windows: Sequence[int]) -> tuple[int, int] | None:
    """Heads of queries in layers without and with a window; None where layers of one kind differ."""
    full, local = (
        {each for each, window in zip(heads, windows, strict=True) if (window > 0) == is_local}
        for is_local in (False, True)
    )
    if len(full) > 1 or len(local) > 1:
        return None
    return next(iter(full or local)), next(iter(local or full))


def _read_gates(config: JsonFile) -> bool:
    """Whether each feature of a head has a gate; raises ModelError."""
    value = config.value("gating")
    if value in (None, True, "per-head", "per_head"):
        return False
    if value in ("per-element", "per_element"):
        return True
    raise config.error("gating", 'it must be true, "per-head" or "per-element"')


def _read_windows_of_gguf(file: GGUFTensors, num_layers: int) -> tuple[int, ...]:
    """As `gguf_config.read_windows`, but that the first layer of a period sees all."""
    if isinstance(file.fields.value("attention.sliding_window_pattern"), list):
        return gguf_config.read_windows(file, num_layers, period=_PERIOD)
    window = gguf_config.read_window(file)
    period = file.fields.integer("attention.sliding_window_pattern") or _PERIOD
    return tuple(window if layer % period else 0 for layer in range(num_layers))


def with_local_heads(
    made: ExpertsConfig, windows: Sequence[int], local: Rotary, num_local_heads: int, *, gates_features: bool
) -> LagunaConfig:
    """Raises ModelError if heads cannot share those of keys."""
    if num_local_heads % made.num_kv_heads:
        raise ModelError(f"{num_local_heads} heads cannot share {made.num_kv_heads} heads of keys evenly")
    changed: dict[str, Any] = {**vars(made), "windows": tuple(windows), "rotary": (*made.rotary, local)}
    return LagunaConfig(**changed, num_local_heads=num_local_heads, gates_features=gates_features)
