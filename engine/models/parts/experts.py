"""The family of decoders whose feed-forward blocks are mixtures of experts (Shazeer et al., 2017)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from engine.backends.base.backend import Products
from engine.backends.base.operands import Clamp, ExpertBiases, Picks
from engine.backends.base.token_layout import TokenLayout
from engine.interface.errors import ModelError
from engine.models.parts import gguf_config
from engine.models.parts.decoder import Decoder, Names, in_layers
from engine.models.parts.decoder_config import DecoderConfig
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Split
from engine.weights.tensors import AsMatrix

MAX_NUM_EXPERTS = 4096  # so that a damaged configuration cannot ask for a huge list of tensor names


@dataclass(frozen=True)
class ExpertsConfig(DecoderConfig):
    """A decoder's, in which `intermediate_size` is that of each expert."""

    num_experts: int = 0  # of a layer
    num_picked: int = 0  # of a token
    normalises_shares: bool = False  # whether the shares of the experts that a token picks add up to 1
    clamp: Clamp | None = None  # of the experts' gates and ups
    shared_size: int = 0  # of the expert that every token goes through, with a gate of its own; 0: there is none

    @property
    def product_inputs(self) -> dict[str, int]:
        """As `ModelConfig.product_inputs`."""
        shared = {"shared expert": self.shared_size} if self.shared_size else {}
        return {**super().product_inputs, **shared}


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
        return [
            Leaf("router", LeafKind.MATRIX, (router,), is_exact=True),
            Leaf("gate_up", LeafKind.GATED, (gate, up), Split.EXPERTS, num_experts=count),
            Leaf("down", LeafKind.MATRIX, (down,), Split.EXPERTS, num_experts=count),
            *(self._shared_leaves() if config.shared_size else ()),
        ]

    def expert_parts(self, hidden: int, inner: int) -> tuple[Part, Part, Part]:
        """The gate, the up and the down of an expert."""
        gate, up = (in_layers((inner, hidden), self.expert_names[name]) for name in ("gate", "up"))
        return gate, up, in_layers((hidden, inner), self.expert_names["down"])

    def _shared_leaves(self) -> list[Leaf]:
        hidden, inner, names = self.config.hidden_size, self.config.shared_size, self.shared_names
        gate, up = (in_layers((inner, hidden), names[name]) for name in ("gate", "up"))
        share = in_layers((1, hidden), names["share"], gguf_transform=AsMatrix)
        return [
            Leaf("shared_gate_up", LeafKind.GATED, (gate, up), Split.OUTPUTS),
            Leaf("shared_down", LeafKind.MATRIX, (in_layers((hidden, inner), names["down"]),), Split.INPUTS),
            Leaf("shared_share", LeafKind.MATRIX, (share,), is_exact=True),
        ]

    def feed_forward(
        self, x: jax.Array, params: Params, index: jax.Array, layout: TokenLayout, products: Products
    ) -> jax.Array:
        """The residual stream [num_tokens, hidden] after a layer's experts."""
        config = self.config
        norm = self.norm(params, "mlp_norm")
        inputs = x if norm is None else products.norm(x, norm, index, layout)
        scores = products.norm_product(inputs, None, params["router"], index, layout, bias=params.get("router_bias"))
        picks = pick(scores, config.num_picked, normalises=config.normalises_shares)
        if config.residual_scale != 1.0:
            picks = picks._replace(shares=picks.shares * config.residual_scale)
        x = products.add_experts(
            x, inputs, params["gate_up"], params["down"], picks, index, layout,
            activation=config.activation, clamp=config.clamp, biases=self._biases(params),
        )  # fmt: skip
        if not config.shared_size:
            return x
        share = jax.nn.sigmoid(products.norm_product(inputs, None, params["shared_share"], index, layout))
        mixed = products.norm_product(
            inputs, None, params["shared_gate_up"], index, layout, activation=config.activation, is_gated=True
        )
        mixed = (mixed * share).astype(x.dtype)
        return products.add_product(x, mixed, params["shared_down"], index, layout, scale=config.residual_scale)

    def _biases(self, params: Params) -> ExpertBiases | None:
        """Those of the experts, where the architecture has some."""
        if "gate_up_bias" not in params:
            return None
        return ExpertBiases(params["gate_up_bias"], params["down_bias"])


def pick(scores: jax.Array, num_picked: int, *, normalises: bool) -> Picks:
    """The experts with the largest shares, a softmax of [num_tokens, num_experts], perhaps divided by their sum."""
    shares, experts = lax.top_k(jax.nn.softmax(scores.astype(jnp.float32), axis=-1), num_picked)
    if normalises:
        shares = shares / jnp.sum(shares, axis=-1, keepdims=True)
    return Picks(experts, shares, scores.shape[-1])


def refuse_layers_without_experts(config: JsonFile) -> None:
    """Raises ModelError if some layers of one of Qwen's models have no experts."""
    if config.value("mlp_only_layers") not in (None, []):
        raise config.error("mlp_only_layers", "layers without experts are not served")
    if config.integer("decoder_sparse_step", least=1) not in (None, 1):
        raise config.error("decoder_sparse_step", "layers without experts are not served")


def check_experts(num_experts: int, num_picked: int) -> None:
    """Raises ModelError if a token cannot pick so many experts, or there are more than any model has."""
    if num_experts > MAX_NUM_EXPERTS:
        raise ModelError(f"the layers have {num_experts} experts each; at most {MAX_NUM_EXPERTS} are served")
    if num_picked > num_experts:
        raise ModelError(f"a token cannot pick {num_picked} of {num_experts} experts")


def with_experts(usual: DecoderConfig, *, num_experts: int, num_picked: int, normalises_shares: bool) -> ExpertsConfig:
    """Raises ModelError as `check_experts`."""
    check_experts(num_experts, num_picked)
    values = {field.name: getattr(usual, field.name) for field in dataclasses.fields(usual)}
    return ExpertsConfig(**values, num_experts=num_experts, num_picked=num_picked, normalises_shares=normalises_shares)


def read_folder(config: JsonFile, usual: DecoderConfig, *, normalises_shares: bool) -> ExpertsConfig:
    """The fields of `config.json` for experts, in every architecture; raises ModelError."""
    return with_experts(
        usual,
        # Releases of transformers store it by either name.
        num_experts=config.integer("num_experts", least=1) or config.required_integer("num_local_experts", least=1),
        num_picked=config.required_integer("num_experts_per_tok", least=1),
        normalises_shares=normalises_shares,
    )


def read_gguf(file: GGUFTensors, *, normalises_shares: bool) -> ExpertsConfig:
    """The configuration in the family's GGUF files, `normalises_shares` where they do not say; raises ModelError."""
    fields, usual = file.fields, gguf_config.read_decoder(file)
    inner = fields.integer("expert_feed_forward_length")
    if fields.value("expert_shared_count"):
        raise fields.error("expert_shared_count", "experts that all tokens go through are not served")
    normalises = fields.flag("expert_weights_norm")
    return with_experts(
        dataclasses.replace(usual, intermediate_size=inner or usual.intermediate_size),
        num_experts=fields.required_integer("expert_count", least=1),
        num_picked=fields.required_integer("expert_used_count", least=1),
        normalises_shares=normalises_shares if normalises is None else normalises,
    )
