"""The Hadamard transform of the features of heads, as src/vectors/hadamard.h of the native kernels has it."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def hadamard(x: jax.Array) -> jax.Array:
    """float32 of the shape of x, whose last axis is transformed in blocks: a rotation, and its own inverse.

    A block has as many features as the largest power of two that divides those of a head.
    """
    size = x.shape[-1] & -x.shape[-1]
    signs = np.ones((1, 1), np.float32)
    while len(signs) < size:  # Sylvester's construction
        signs = np.block([[signs, signs], [signs, -signs]])
    blocks = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, size)
    rotation = jnp.asarray(signs / np.sqrt(np.float32(size)))
    return jnp.matmul(blocks, rotation, precision=lax.Precision.HIGHEST).reshape(x.shape)
