"""The input of a filter: the tokens that the filters before it have left."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Candidates(NamedTuple):
    """The distribution of each row after the filters so far. All arrays are [num_rows, vocab_size] but the last."""

    centred: jax.Array  # logits less the best one, before any filter; -inf where banned
    scaled: jax.Array  # the same over temperature
    keep: jax.Array  # bool, the tokens that are left
    uniform: jax.Array  # float32[num_rows] in [0, 1), for a filter with a random choice

    @property
    def logits(self) -> jax.Array:
        """Centred logits of the tokens that are left, and -inf."""
        return jnp.where(self.keep, self.centred, -jnp.inf)

    @property
    def weights(self) -> jax.Array:
        """Probabilities of the tokens that are left, each relative to the best one's, and 0."""
        return jnp.where(self.keep, jnp.exp(self.scaled), 0.0)
