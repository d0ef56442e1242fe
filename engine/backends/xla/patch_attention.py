"""Attention of a picture's patches to each other, in XLA."""

import jax
import jax.numpy as jnp
from jax import lax

from engine.backends.base.patches import Patches

_QUERIES_AT_ONCE = 256
_UNSEEN = -1e30


def attend_patches(
    qkv: jax.Array, patches: Patches, *, num_heads: int, scale: float, angles: jax.Array | None, is_exact: bool
) -> jax.Array:
    """As `PatchAttention`; all products are of float32."""
    num_patches = len(qkv)
    q, k, v = (each.reshape(num_patches, num_heads, -1) for each in jnp.split(qkv, 3, axis=-1))
    if angles is not None:
        q, k = (_rotated(each, angles[:, None]) for each in (q, k))
    keys, values = k.transpose(1, 2, 0), v.transpose(1, 0, 2)
    # Some queries at a time, because the scores of all would be large.
    width = min(num_patches, _QUERIES_AT_ONCE)
    num_blocks = -(-num_patches // width)
    padding = num_blocks * width - num_patches
    blocks = jnp.pad(q * scale, ((0, padding), (0, 0), (0, 0))).reshape(num_blocks, width, *q.shape[1:])
    ranges = None
    if patches.first_seen is not None and patches.last_seen is not None:
        ranges = tuple(
            jnp.pad(each, (0, padding)).reshape(num_blocks, width) for each in (patches.first_seen, patches.last_seen)
        )
    place = jnp.arange(num_patches)
    # XLA multiplies two matrices on a CPU three times as fast as one pair for each head.
    heads_at_once = 1 if jax.default_backend() == "cpu" else num_heads

    def attend_block(block: tuple[jax.Array, tuple[jax.Array, ...] | None]) -> jax.Array:
        queries, its_ranges = block
        sees = None if patches.num_real is None else (place < patches.num_real)[None]
        if its_ranges is not None:
            first, last = (each[:, None] for each in its_ranges)
            in_range = (first <= place) & (place <= last)
            sees = in_range if sees is None else in_range & sees

        def attend_head(head: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            its_queries, its_keys, its_values = head
            scores = its_queries @ its_keys
            if sees is not None:  # a padding query may see nothing; a finite number keeps its weights finite
                scores = jnp.where(sees, scores, _UNSEEN)
            return jax.nn.softmax(scores, axis=-1) @ its_values

        made: jax.Array = lax.map(attend_head, (queries.transpose(1, 0, 2), keys, values), batch_size=heads_at_once)
        return made.transpose(1, 0, 2)

    made: jax.Array = lax.map(attend_block, (blocks, ranges))
    return made.reshape(num_blocks * width, -1)[:num_patches]


def _rotated(heads: jax.Array, angles: jax.Array) -> jax.Array:
    """[num_patches, num_heads, size], rotated by [num_patches, 1, size / 2]."""
    first, second = jnp.split(heads, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
