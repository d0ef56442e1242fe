"""Dense layers behind pooled texts: projections of embeddings, and heads that score texts."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from engine.backends.base.model_config import Projection
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored


def projection_leaves(projections: Sequence[Projection]) -> list[Leaf]:
    """The leaves of projections. They are small, and their products are XLA's."""
    leaves = []
    for index, projection in enumerate(projections):
        shapes = {"weight": (projection.num_outputs, projection.num_inputs), "bias": (projection.num_outputs,)}
        for suffix, shape in shapes.items():
            if suffix == "bias" and not projection.has_bias:
                continue
            stored = {
                "safetensors": Stored(f"{projection.in_folder}.{suffix}"),
                "gguf": Stored(f"{projection.in_gguf}.{suffix}"),
            }
            name = _leaf(index) if suffix == "weight" else f"{_leaf(index)}_bias"
            leaves.append(Leaf(name, LeafKind.VECTOR, (Part(shape, stored),), is_per_layer=False))
    return leaves


def projected(projections: Sequence[Projection], params: Params, vectors: jax.Array) -> jax.Array:
    """float32[num_texts, outputs] of float32[num_texts, hidden]; without projections the same."""
    for index, projection in enumerate(projections):
        vectors = dense(params, _leaf(index), vectors)
        if projection.has_tanh:
            vectors = jnp.tanh(vectors)
    return vectors


def dense(params: Params, leaf: str, vectors: jax.Array) -> jax.Array:
    """float32[num_texts, outputs]; the sums are made in float32, in one order whatever else is in the step."""
    products: jax.Array = jnp.matmul(vectors, params[leaf][0].astype(jnp.float32), precision="highest")
    bias = params.get(f"{leaf}_bias")
    return products if bias is None else products + bias[0].astype(jnp.float32)


def _leaf(index: int) -> str:
    return f"projection_{index}"
