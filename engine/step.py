"""The `forward` program, one pass of a step's tokens through the model, and a chunk of several steps."""

from __future__ import annotations

from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cache.storage import KVPages
from engine.attention import token_layout
from engine.batch import FROM_DEVICE, SLOT, START, TOKEN, StepBatch
from engine.models import llama
from sampling.rows import POSITION, SamplingRows
from sampling.sampler import sample
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


def decode_chunk(
    params: llama.LlamaParams,
    kv: KVPages,
    slots: Slots,
    batch: StepBatch,
    sampling: SamplingRows,
    *,
    config: llama.LlamaConfig,
    num_repeats: int,
    all_greedy: bool,
) -> tuple[KVPages, Slots, jax.Array]:
    """Several steps of decode rows in one program: each samples the next one's input.

    Args:
        kv, slots: donated.
        batch: of decode rows alone; their pages reach to the end of the chunk.

    Returns:
        kv, slots, and int32[num_repeats, num_rows] as of so many calls of `sample`.
    """

    def step(carry: tuple[KVPages, Slots], index: jax.Array) -> tuple[tuple[KVPages, Slots], jax.Array]:
        kv, slots = carry
        rows = jnp.asarray(batch.rows).at[:, START].add(index)
        rows = rows.at[:, TOKEN].set(jnp.where(index == 0, rows[:, TOKEN], FROM_DEVICE))
        # The fields are declared as what the host builds; inside a program they are device arrays.
        logits, kv = forward(params, kv, slots, batch._replace(rows=cast(np.ndarray, rows)), config=config)
        ints = jnp.asarray(sampling.ints).at[:, POSITION].add(index)
        slots, out = sample(logits, slots, sampling._replace(ints=cast(np.ndarray, ints)), all_greedy=all_greedy)
        return (kv, slots), out

    (kv, slots), out = lax.scan(step, (kv, slots), jnp.arange(num_repeats, dtype=jnp.int32))
    return kv, slots, out
