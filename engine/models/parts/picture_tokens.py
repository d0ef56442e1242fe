"""Tokens whose embeddings come from an encoder: ids beyond the vocabulary count the embeddings of all pictures."""

import jax
import jax.numpy as jnp

from engine.backends.base.token_layout import TokenLayout
from engine.models.encoders.vision_encoder import END_BASE, NUM_END_FEATURES, VisionEncoder


class PictureTokens:
    """The tokens of a step, int32[num_tokens], some of which may be those of pictures."""

    def __init__(self, tokens: jax.Array, vocab_size: int) -> None:
        self._is_picture = tokens >= vocab_size
        self._index = jnp.maximum(tokens - vocab_size, 0)
        self.text = jnp.where(self._is_picture, 0, tokens)  # any token stands for those of pictures

    def layout(self, layout: TokenLayout, encoder: VisionEncoder, pictures: jax.Array) -> TokenLayout:
        """The layout, in which the tokens of a picture may see all of it."""
        if not encoder.sees_both_ways:
            return layout
        if encoder.stores_ends:
            digits = pictures[self._rows(pictures), -NUM_END_FEATURES:].astype(jnp.int32)
            num_behind = digits[:, 0] * END_BASE + digits[:, 1]
        else:
            num_behind = encoder.num_tokens - 1 - self._index % encoder.num_tokens
        return layout._replace(last_seen=layout.positions + jnp.where(self._is_picture, num_behind, 0))

    def embedded(self, of_text: jax.Array, pictures: jax.Array) -> jax.Array:
        """[num_tokens, hidden] from those of the texts and from the embeddings of all pictures."""
        of_pictures = pictures[self._rows(pictures), : of_text.shape[-1]]
        return jnp.where(self._is_picture[:, None], of_pictures.astype(of_text.dtype), of_text)

    def deep(self, pictures: jax.Array, num_deep: int) -> jax.Array:
        """What is added behind the first layers of the text model, [num_deep, num_tokens, hidden]."""
        features = pictures[self._rows(pictures)].reshape(len(self.text), 1 + num_deep, -1)[:, 1:]
        return jnp.where(self._is_picture[:, None, None], features, 0).transpose(1, 0, 2)

    def _rows(self, pictures: jax.Array) -> jax.Array:
        return jnp.minimum(self._index, pictures.shape[0] - 1)
