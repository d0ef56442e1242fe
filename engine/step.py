"""The `forward` program: one pass of a step's tokens through the model."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from cache.storage import KVPages
from engine.attention import token_layout
from engine.batch import FROM_DEVICE, SLOT, TOKEN, StepBatch
from engine.models import llama
from sampling.slots import Slots


def forward(
    params: llama.LlamaParams, kv: KVPages, slots: Slots, batch: StepBatch, *, config: llama.LlamaConfig
) -> tuple[jax.Array, KVPages]:
    """Computes logits of the rows that sample, and writes the keys and values of all tokens.

    Args:
        kv: donated.
        slots: read only; a decode row's input token comes from here and never from the host.

    Returns:
        float32[num_sampled_rows, vocab_size], and kv.
    """
    num_decode = batch.rows.shape[0] - batch.tile_tokens.shape[0]
    decode = jnp.asarray(batch.rows[:num_decode])
    decode_tokens = jnp.where(decode[:, TOKEN] == FROM_DEVICE, slots.last_token[decode[:, SLOT]], decode[:, TOKEN])
    tokens = jnp.concatenate([decode_tokens, batch.tile_tokens.reshape(-1)])
    hidden, kv = llama.forward(params, config, tokens, kv, token_layout(batch, kv.page_size))
    return llama.logits(params, config, hidden[batch.sampled]), kv
