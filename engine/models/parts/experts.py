"""The family of decoders whose feed-forward blocks are mixtures of experts (Shazeer et al., 2017)."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import ClassVar, Self

import jax

from engine.backends.base.backend import Products
from engine.backends.base.norms import of_layer
from engine.backends.base.operands import Clamp, ExpertBiases, Picks
from engine.backends.base.token_layout import TokenLayout
from engine.interface.errors import ModelError
from engine.models.parts import gguf_config
from engine.models.parts.decoder import Decoder, FeedForward, Names, in_layers
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.routing import Routing, pick
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Split, Stored
from engine.weights.tensors import AsMatrix, AsVector


@dataclass(frozen=True)
class ExpertsConfig(DecoderConfig, Routing):
    """A decoder's, in which `intermediate_size` is that of each expert."""

    clamp: Clamp | None = None  # of the experts' gates and ups
    shared_size: int = 0  # of what every token goes through beside its experts; 0: there is none
    has_shared_gate: bool = True  # which gives each token a share of that; else the share is 1
    dense_layers: tuple[int, ...] = ()  # whose feed-forward blocks have no experts
    dense_size: int = 0  # the inner size of those blocks

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """The layers that have experts."""
        dense = frozenset(self.dense_layers)
        return tuple(layer for layer in range(self.num_layers) if layer not in dense)

    @property
    def product_inputs(self) -> dict[str, int]:
        """As `ModelConfig.product_inputs`."""
        more = {"shared expert": self.shared_size, "layers without experts": self.dense_size}
        return {**super().product_inputs, **{name: size for name, size in more.items() if size}}


@dataclass(frozen=True)
class ExpertsDecoder(Decoder):
    """A router gives each token a share of every expert, and those with the largest shares compute it."""

    config: ExpertsConfig

    # In a layer, the router and the gates, ups and downs of an expert. GGUF files hold all experts in one tensor.
    router_names: ClassVar[Names] = ("mlp.gate", "ffn_gate_inp")
    expert_names: ClassVar[Mapping[str, Names]] = {
        "gate": ("mlp.experts.{expert}.gate_proj", "ffn_gate_exps"),
        "up": ("mlp.experts.{expert}.up_proj", "ffn_up_exps"),
        "down": ("mlp.experts.{expert}.down_proj", "ffn_down_exps"),
    }

    # What counts when experts are picked; a folder's name is whole.
    choice_bias_names: ClassVar[Names] = ("mlp.gate.e_score_correction_bias", "exp_probs_b")

    # The gate, up and down of the expert that every token goes through, and the gate of what it adds.
    shared_names: ClassVar[Mapping[str, Names]] = {
        "gate": ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
        "up": ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
        "down": ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        "share": ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    }

    def feed_forward_leaves(self) -> list[Leaf]:
        config, hidden, inner = self.config, self.config.hidden_size, self.config.intermediate_size
        router = in_layers((config.num_experts, hidden), self.router_names)
        gate, up, down = self.expert_parts(hidden, inner)
        count = config.num_experts
        leaves = [
            Leaf("router", LeafKind.MATRIX, (router,), is_exact=True),
            Leaf("gate_up", LeafKind.GATED, (gate, up), Split.EXPERTS, num_experts=count),
            Leaf("down", LeafKind.MATRIX, (down,), Split.EXPERTS, num_experts=count),
            *(self._shared_leaves() if config.shared_size else ()),
        ]
        if config.has_choice_bias:
            leaves.append(Leaf("choice_bias", LeafKind.VECTOR, (self.choice_bias_part(),), is_exact=True))
        if not config.dense_layers:
            return leaves
        return [
            *(dataclasses.replace(leaf, layers=config.expert_layers) for leaf in leaves),
            *(
                dataclasses.replace(leaf, name=f"dense_{leaf.name}", layers=config.dense_layers)
                for leaf in Decoder.feed_forward_leaves(self._with_dense_blocks())
            ),
        ]

    def _with_dense_blocks(self) -> Self:
        """A decoder of the same sizes whose feed-forward blocks have no experts."""
        config = dataclasses.replace(self.config, intermediate_size=self.config.dense_size)
        return dataclasses.replace(self, config=config)

    def choice_bias_part(self) -> Part:
        """What counts of each expert when experts are picked."""
        folder, gguf = self.choice_bias_names
        stored = {
            "safetensors": Stored(f"model.layers.{{layer}}.{folder}"),
            "gguf": Stored(f"blk.{{layer}}.{gguf}.bias", AsVector),  # a matrix of one row in files of ERNIE
        }
        return Part((self.config.num_experts,), stored)

    def expert_parts(self, hidden: int, inner: int) -> tuple[Part, Part, Part]:
        """The gate, the up and the down of an expert."""
        gate, up = (in_layers((inner, hidden), self.expert_names[name]) for name in ("gate", "up"))
        return gate, up, in_layers((hidden, inner), self.expert_names["down"])

    def _shared_leaves(self) -> list[Leaf]:
        hidden, inner, names = self.config.hidden_size, self.config.shared_size, self.shared_names
        gate, up = (in_layers((inner, hidden), names[name]) for name in ("gate", "up"))
        leaves = [
            Leaf("shared_gate_up", LeafKind.GATED, (gate, up), Split.OUTPUTS),
            Leaf("shared_down", LeafKind.MATRIX, (in_layers((hidden, inner), names["down"]),), Split.INPUTS),
        ]
        if self.config.has_shared_gate:
            share = in_layers((1, hidden), names["share"], gguf_transform=AsMatrix)
            leaves.append(Leaf("shared_share", LeafKind.MATRIX, (share,), is_exact=True))
        return leaves

    def runs(self) -> Sequence[tuple[range, FeedForward]]:
        dense, num_before = frozenset(self.config.dense_layers), {True: 0, False: 0}
        made: list[tuple[range, FeedForward]] = []
        for is_dense, neighbours in groupby(range(self.config.num_layers), dense.__contains__):
            layers = tuple(neighbours)
            feed_forward = self.dense_feed_forward if is_dense else self.feed_forward
            num_others = layers[0] - num_before[is_dense]
            made.append((range(layers[0], layers[-1] + 1), partial(feed_forward, num_others=num_others)))
            num_before[is_dense] += len(layers)
        return made

    def feed_forward(
        self, x: jax.Array, params: Params, index: jax.Array, layout: TokenLayout, products: Products,
        num_others: int | jax.Array = 0,
    ) -> jax.Array:  # fmt: skip
        """The residual stream [num_tokens, hidden] after a layer's experts; so many layers before have none."""
        place, norm = index - num_others, self.norm(params, "mlp_norm")
        inputs = x if norm is None else products.norm(x, norm, index, layout)
        scores = self.scores(inputs, params, place, layout, products)
        return self.with_experts(x, inputs, scores, params, place, layout, products)

    def scores(
        self, x: jax.Array, params: Params, place: jax.Array, layout: TokenLayout, products: Products
    ) -> jax.Array:
        """What the router says of every expert, [num_tokens, num_experts]."""
        return products.norm_product(x, None, params["router"], place, layout, bias=params.get("router_bias"))

    def with_experts(
        self, x: jax.Array, inputs: jax.Array, scores: jax.Array, params: Params, place: jax.Array,
        layout: TokenLayout, products: Products,
    ) -> jax.Array:  # fmt: skip
        """x and what the experts add to it, which the scores choose, of their inputs."""
        config = self.config
        picks = self.picks(scores, params, place)
        if config.residual_scale != 1.0:
            picks = picks._replace(shares=picks.shares * config.residual_scale)
        routed, picks = self.expert_inputs(inputs, picks)
        x = products.add_experts(
            x, routed, params["gate_up"], params["down"], picks, place, layout,
            activation=config.activation, clamp=config.clamp, biases=self._biases(params),
        )  # fmt: skip
        if not config.shared_size:
            return x
        mixed = products.norm_product(
            inputs, None, params["shared_gate_up"], place, layout, activation=config.activation, is_gated=True
        )
        if config.has_shared_gate:
            share = jax.nn.sigmoid(products.norm_product(inputs, None, params["shared_share"], place, layout))
            mixed = (mixed * share).astype(x.dtype)
        return products.add_product(x, mixed, params["shared_down"], place, layout, scale=config.residual_scale)

    def picks(self, scores: jax.Array, params: Params, place: jax.Array) -> Picks:
        """The experts that tokens go to, and their shares, of what the router says."""
        config = self.config
        return pick(scores, config, of_layer(params["choice_bias"], place) if config.has_choice_bias else None)

    def expert_inputs(self, inputs: jax.Array, picks: Picks) -> tuple[jax.Array, Picks]:
        """What the picked experts read of a block's inputs, and the picks of what they make."""
        return inputs, picks

    def _biases(self, params: Params) -> ExpertBiases | None:
        """Those of the experts, where the architecture has some."""
        if "gate_up_bias" not in params:
            return None
        return ExpertBiases(params["gate_up_bias"], params["down_bias"])

    def dense_feed_forward(
        self, x: jax.Array, params: Params, index: jax.Array, layout: TokenLayout, products: Products,
        num_others: int | jax.Array = 0,
    ) -> jax.Array:  # fmt: skip
        """The residual stream after a block without experts; so many layers before have experts."""
        place, norm = index - num_others, self.norm(params, "mlp_norm")
        inputs = x if norm is None else products.norm(x, norm, index, layout)
        mixed = products.norm_product(
            inputs, None, params["dense_gate_up"], place, layout, activation=self.config.activation, is_gated=True
        )
        return products.add_product(x, mixed, params["dense_down"], place, layout, scale=self.config.residual_scale)


def refuse_layers_without_experts(config: JsonFile) -> None:
    """Raises ModelError if some layers of one of Qwen's models have no experts."""
    if config.value("mlp_only_layers") not in (None, []):
        raise config.error("mlp_only_layers", "layers without experts are not served")
    if config.integer("decoder_sparse_step", least=1) not in (None, 1):
        raise config.error("decoder_sparse_step", "layers without experts are not served")


def with_dense_layers(config: JsonFile, made: ExpertsConfig, dense_size: int) -> ExpertsConfig:
    """One of Qwen's models, some of whose layers may have no experts; raises ModelError."""
    step = config.integer("decoder_sparse_step", least=1) or 1
    listed, key, num_layers = config.value("mlp_only_layers") or [], "mlp_only_layers", made.num_layers
    if not isinstance(listed, list) or any(not isinstance(layer, int) for layer in listed):
        raise config.error(key, "it must list layers")
    dense = tuple(layer for layer in range(num_layers) if layer in listed or (layer + 1) % step)
    if len(dense) == num_layers:
        raise config.error(key if listed else "decoder_sparse_step", "no layer has experts")
    return dataclasses.replace(made, dense_layers=dense, dense_size=dense_size if dense else 0)


def with_experts(usual: DecoderConfig, routing: Routing) -> ExpertsConfig:
    """Raises ModelError if tokens cannot be routed so, or feed-forward blocks have biases."""
    routing.check()
    if usual.has_mlp_bias:
        raise ModelError("mlp_bias: biases of feed-forward blocks are not served in mixtures of experts")
    return ExpertsConfig(**vars(usual), **vars(routing))


def read_folder(config: JsonFile, usual: DecoderConfig, *, normalises_shares: bool) -> ExpertsConfig:
    """The fields of `config.json` for experts, in every architecture; raises ModelError."""
    routing = Routing(
        # Releases of transformers store it by either name.
        num_experts=config.integer("num_experts", least=1) or config.required_integer("num_local_experts", least=1),
        num_picked=config.required_integer("num_experts_per_tok", least=1),
        normalises_shares=normalises_shares,
    )
    return with_experts(usual, routing)


def read_gguf(file: GGUFTensors, *, normalises_shares: bool) -> ExpertsConfig:
    """The configuration in the family's GGUF files, `normalises_shares` where they do not say; raises ModelError."""
    fields, usual = file.fields, gguf_config.read_decoder(file)
    inner = fields.integer("expert_feed_forward_length")
    if fields.value("expert_shared_count"):
        raise fields.error("expert_shared_count", "experts that all tokens go through are not served")
    normalises = fields.flag("expert_weights_norm")
    routing = Routing(
        num_experts=fields.required_integer("expert_count", least=1),
        num_picked=fields.required_integer("expert_used_count", least=1),
        normalises_shares=normalises_shares if normalises is None else normalises,
    )
    return with_experts(dataclasses.replace(usual, intermediate_size=inner or usual.intermediate_size), routing)
