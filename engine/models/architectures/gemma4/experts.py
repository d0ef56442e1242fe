"""The experts of Gemma 4, beside the dense feed-forward block of each layer."""

import jax
import jax.numpy as jnp

from engine.backends.base.backend import Products
from engine.backends.base.norms import of_layer
from engine.backends.base.operands import Norm
from engine.backends.base.token_layout import TokenLayout
from engine.models.architectures.gemma4.config import Gemma4Config
from engine.models.parts.decoder import in_layers
from engine.models.parts.routing import pick
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Split, Stored
from engine.weights.tensors import Transform, rows

# Of the norms behind the dense block, before the experts and behind them.
NORMS = {
    "dense_norm": ("post_feedforward_layernorm_1", "post_ffw_norm_1"),
    "experts_norm": ("pre_feedforward_layernorm_2", "pre_ffw_norm_2"),
    "experts_output_norm": ("post_feedforward_layernorm_2", "post_ffw_norm_2"),
}


def expert_leaves(config: Gemma4Config) -> list[Leaf]:
    """The leaves of the router and the experts; files hold an expert's gate and up in one tensor."""
    hidden, inner, count = config.hidden_size, config.expert_size, config.routing.num_experts
    halves = (rows(0, inner, 2 * inner), rows(inner, 2 * inner, 2 * inner))
    gate, up = (_expert_part((inner, hidden), "gate_up", half, 2 * inner) for half in halves)
    router = in_layers((count, hidden), ("router.proj", "ffn_gate_inp"))
    return [
        Leaf("router", LeafKind.MATRIX, (router,), is_exact=True),
        _exact("router_scale", hidden, "router.scale", "ffn_gate_inp.scale"),
        _exact("expert_scale", count, "router.per_expert_scale", "ffn_down_exps.scale"),
        Leaf("experts_gate_up", LeafKind.GATED, (gate, up), Split.EXPERTS, num_experts=count),
        Leaf(
            "experts_down", LeafKind.MATRIX, (_expert_part((hidden, inner), "down"),), Split.EXPERTS, num_experts=count
        ),
    ]


def with_experts(
    x: jax.Array, mixed: jax.Array, config: Gemma4Config, params: Params, layer: jax.Array, layout: TokenLayout,
    products: Products,
) -> jax.Array:  # fmt: skip
    """What a layer's feed-forward blocks make of the residual stream, `mixed` of them the dense one."""

    def normed(values: jax.Array, leaf: str) -> jax.Array:
        return products.norm(values, Norm(params[leaf], config.rms_norm_eps), layer, layout)

    routed = normed(x, "router_scale") * config.hidden_size**-0.5
    picks = pick(products.norm_product(routed, None, params["router"], layer, layout), config.routing)
    scales = of_layer(params["expert_scale"], layer).astype(jnp.float32)
    picks = picks._replace(shares=picks.shares * scales[picks.experts])
    made = products.add_experts(
        jnp.zeros_like(x), normed(x, "experts_norm"), params["experts_gate_up"], params["experts_down"], picks, layer,
        layout, activation=config.activation,
    )  # fmt: skip
    return normed(mixed, "dense_norm") + normed(made, "experts_output_norm")


def _expert_part(
    shape: tuple[int, int], kind: str, transform: Transform | None = None, num_outputs: int | None = None
) -> Part:
    stored = {
        "safetensors": Stored(f"model.layers.{{layer}}.experts.{kind}_proj", transform, num_outputs),
        "gguf": Stored(f"blk.{{layer}}.ffn_{kind}_exps.weight", transform, num_outputs),
    }
    return Part(shape, stored)


def _exact(leaf: str, size: int, folder: str, gguf: str) -> Leaf:
    stored = {"safetensors": Stored(f"model.layers.{{layer}}.{folder}"), "gguf": Stored(f"blk.{{layer}}.{gguf}")}
    return Leaf(leaf, LeafKind.VECTOR, (Part((size,), stored),), is_exact=True)
