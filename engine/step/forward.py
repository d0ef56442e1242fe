"""The functions that are compiled: one forward pass of a step, prompt logprobs, pooling, and whole decode steps.

Their products of float32 are exact on every device: with any `--dtype` some weights stay float32, such as those of
routers, because rounding would change the chosen experts.
"""

from collections.abc import Callable
from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cache.page_groups import PageGroups
from cache.storage import KVPages
from engine.backends.base.backend import Backends
from engine.backends.base.token_layout import SLOT, START, TOKEN, token_layout
from engine.backends.base.unrounded import unrounded
from engine.interface.config import TILE_GRAIN
from engine.models.parts.model import Model
from engine.step.inputs import FROM_DEVICE, StepBatch
from engine.weights.layout import Params
from sampling.host.params import MAX_LOGPROB_TOKEN_IDS
from sampling.host.rows import POSITION, TEMPERATURE, SamplingRows
from sampling.sampler import sample
from sampling.state import Slots

_OPERATIONS = 2048


@unrounded
def forward(
    params: Params, kv: KVPages, slots: Slots, batch: StepBatch, *,
    model: Model, backends: Backends, groups: PageGroups | None,
) -> tuple[jax.Array, KVPages]:  # fmt: skip
    """Logits of the rows that sample, float32[num_sampled_rows, vocab_size], and `kv`, which is donated.

    A decode row's input token comes from `slots`, which is only read, and never from the host.

    Args:
        groups: of layers with pages of their own, those of the pages' layout; None: a page is of all layers.
    """
    hidden, kv = _hidden(params, kv, slots, batch, model, backends, groups)
    return model.logits(params, hidden, jnp.asarray(batch.sampled), backends), kv


@unrounded
def forward_prompt(
    params: Params, kv: KVPages, slots: Slots, batch: StepBatch, *,
    model: Model, backends: Backends, max_num_tiles: int, groups: PageGroups | None,
) -> tuple[jax.Array, KVPages, jax.Array]:  # fmt: skip
    """As `forward`, for a step with tiles; also returns the hidden states of their tokens, padded to one size."""
    hidden, kv = _hidden(params, kv, slots, batch, model, backends, groups)
    num_tiles, tile_size = batch.tile_tokens.shape
    of_tiles = hidden[-num_tiles * tile_size :]
    padded = jnp.pad(of_tiles, ((0, (max_num_tiles - num_tiles) * tile_size), (0, 0)))
    return model.logits(params, hidden, jnp.asarray(batch.sampled), backends), kv, padded


@unrounded
def encode(
    params: Params, kv: KVPages, batch: StepBatch, shares: jax.Array, num_ways: jax.Array, *,
    model: Model, backends: Backends, max_num_tiles: int,
) -> tuple[jax.Array, KVPages, jax.Array]:  # fmt: skip
    """What the tiles of a text make up to each of them, float32[NUM_WAYS, num_tiles, size], and `kv`, which is donated.

    Also the states of all their tokens, float32[num_tiles * TILE_SIZE, hidden].

    The step has tiles alone, of whole texts; the last pooled tile of a text has its embedding, or its scores. `shares`
    are float32[NUM_WAYS, num_tiles, TILE_SIZE], of each token in each way in which it is pooled, as `PooledTile` has
    them; only the first `num_ways` are computed.
    """
    tokens = jnp.asarray(batch.tile_tokens).reshape(-1)
    hidden, kv = _hidden_of(params, kv, tokens, batch, model, backends, groups=None)
    states = model.all_states(params, hidden, backends).astype(jnp.float32)
    by_tile, starts = states.reshape(*shares.shape[1:], -1), jnp.asarray(batch.rows)[:, START]

    def of_way(way: jax.Array) -> jax.Array:
        vectors = _pooled_tiles(by_tile, lax.dynamic_index_in_dim(shares, way, keepdims=False), starts)
        # A head's products have one shape in every step, so that XLA makes their sums in one order.
        padded = jnp.pad(vectors, ((0, max_num_tiles - len(vectors)), (0, 0)))
        return model.pooled(params, padded)[: len(vectors)]

    made = jax.eval_shape(of_way, num_ways)
    # One program for every number of ways: each gives the bits that it gives alone.
    pooled: jax.Array = lax.fori_loop(
        0, num_ways, lambda way, made: made.at[way].set(of_way(way)), jnp.zeros((len(shares), *made.shape), made.dtype)
    )
    return pooled, kv, states


def _pooled_tiles(by_tile: jax.Array, shares: jax.Array, starts: jax.Array) -> jax.Array:
    """What the tiles of texts make up to each of them in one way, float32[num_tiles, hidden].

    Args:
        by_tile: the states of their tokens, [num_tiles, TILE_SIZE, hidden], with the shares of each.
        starts: the positions of their first tokens.
    """
    are_maxima = jnp.any(shares < 0, axis=1)
    # Padding may be anything: 0 times a NaN is a NaN.
    sums = jnp.sum(jnp.where(shares[..., None] > 0, by_tile * shares[..., None], 0), axis=1)

    def with_maxima() -> jax.Array:
        maxima = jnp.max(jnp.where(shares[..., None] < 0, by_tile, -jnp.inf), axis=1)
        return jnp.where(are_maxima[:, None], maxima, sums)

    of_tiles: jax.Array = lax.cond(jnp.any(are_maxima), with_maxima, lambda: sums)
    # A maximum begins with the first tile that has a share in it: what is before that is no number of the text's.
    begin = (starts == 0) | (are_maxima & ~jnp.roll(are_maxima, 1))
    return _pooled_by_text(of_tiles, begin, are_maxima)


def _pooled_by_text(vectors: jax.Array, are_first: jax.Array, are_maxima: jax.Array) -> jax.Array:
    """The sums, or the maxima, of the tiles of a text up to each, float32[num_tiles, hidden], made in their order."""

    def add(total: jax.Array, tile: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        vector, is_first, is_maximum = tile
        total = jnp.where(is_first, vector, jnp.where(is_maximum, jnp.maximum(total, vector), total + vector))
        return total, total

    pooled: jax.Array = lax.scan(add, jnp.zeros_like(vectors[0]), (vectors, are_first, are_maxima))[1]
    return pooled


@unrounded
def score_tile(
    params: Params, hidden: jax.Array, tokens: jax.Array, following: jax.Array, *,
    model: Model, backends: Backends,
) -> jax.Array:  # fmt: skip
    """Logprobs of the tokens that follow those of a tile, int32[TILE_SIZE, NUM_COLUMNS] as in sampling/logprobs.py.

    `tokens` are int32[TILE_SIZE], indices into `hidden` of `forward_prompt`, negative in padding.
    """
    logits = model.logits(params, hidden, tokens, backends)
    nothing_listed = jnp.zeros((tokens.shape[0], MAX_LOGPROB_TOKEN_IDS), jnp.int32)
    return backends.sampler.logprobs(logits, following, nothing_listed)


@unrounded
def pool_tile(
    params: Params, hidden: jax.Array, tokens: jax.Array, shares: jax.Array, *,
    model: Model, backends: Backends,
) -> jax.Array:  # fmt: skip
    """What each block of a tile adds to the embedding of its prompt, float32[TILE_SIZE // TILE_GRAIN, size].

    Projections of decoders are linear, and so each piece goes through them.

    `tokens` are int32[TILE_SIZE], indices into `hidden` of `forward_prompt`, negative in padding, with float32
    `shares`, as `PooledTile` has them.
    """
    states = model.states(params, hidden, tokens, backends).astype(jnp.float32)
    # Padding may be anything: 0 times a NaN is a NaN.
    by_block, are_there = (-1, TILE_GRAIN, states.shape[-1]), tokens[:, None] >= 0
    totals = jnp.sum(jnp.where(are_there, states * shares[:, None], 0).reshape(by_block), axis=1)
    maxima = jnp.max(jnp.where(are_there, states, -jnp.inf).reshape(by_block), axis=1)
    return model.pooled(params, jnp.where(jnp.any(shares < 0), maxima, totals))


def _hidden(
    params: Params, kv: KVPages, slots: Slots, batch: StepBatch,
    model: Model, backends: Backends, groups: PageGroups | None,
) -> tuple[jax.Array, KVPages]:  # fmt: skip
    """The hidden states of the step's tokens after the last layer, and kv."""
    num_decode = batch.rows.shape[0] - batch.tile_tokens.shape[0]
    decode = jnp.asarray(batch.rows[:num_decode])
    decode_tokens = jnp.where(decode[:, TOKEN] == FROM_DEVICE, slots.last_token[decode[:, SLOT]], decode[:, TOKEN])
    tokens = decode_tokens
    if len(batch.tile_tokens):  # jaxlib 0.11 crashes where a program for several devices concatenates an empty argument
        tokens = jnp.concatenate([tokens, batch.tile_tokens.reshape(-1)])
    return _hidden_of(params, kv, tokens, batch, model, backends, groups)


def _hidden_of(
    params: Params, kv: KVPages, tokens: jax.Array, batch: StepBatch,
    model: Model, backends: Backends, groups: PageGroups | None,
) -> tuple[jax.Array, KVPages]:  # fmt: skip
    """As `_hidden`, of tokens that are known: those of the decode rows, and then those of the tiles."""
    if backends.is_opaque_to_xla:
        tokens = _kept_asynchronous(tokens)
    num_tiles, tile_size = batch.tile_tokens.shape
    layout = token_layout(
        batch.rows, batch.page_table, num_tiles=num_tiles, tile_size=tile_size, page_size=kv.page_size, groups=groups
    )
    if batch.rope_positions is not None:
        layout = layout._replace(rope_positions=jnp.asarray(batch.rope_positions))
    return model.forward(params, tokens, kv, layout, backends)


def _kept_asynchronous(tokens: jax.Array) -> jax.Array:
    """The tokens, with enough arithmetic added that XLA runs their program outside the thread that dispatches it.

    XLA on CPU runs a program in the caller's thread if it estimates fewer than 1,000 operations (TfrtCpuExecutable,
    `cheap_computation_`), and counts native kernels for nothing. The operations take a tenth of a microsecond; the
    barriers keep the compiler from optimising them away.
    """
    magnitude = lax.optimization_barrier(jnp.broadcast_to(jnp.abs(tokens[:1]), (_OPERATIONS,)))
    nothing = jnp.minimum(jnp.sum(jnp.minimum(magnitude, 1)), 0)
    kept: jax.Array = tokens + lax.optimization_barrier(nothing)
    return kept


def decode_step(
    params: Params, kv: KVPages, slots: Slots, batch: StepBatch, sampling: SamplingRows, index: jax.Array, *,
    model: Model, backends: Backends, draw: Callable[..., tuple[Slots, jax.Array]], groups: PageGroups | None,
) -> tuple[KVPages, Slots, jax.Array]:  # fmt: skip
    """One of several steps of decode rows, each of which samples the next one's input, with its sampling.

    `batch` and `sampling` are those of the first of them, and the rows' pages reach to the last; `draw` makes slots and
    tokens of logits, slots and the rows. `kv` and `slots` are donated. Returns them and int32[num_rows].
    """
    rows = jnp.asarray(batch.rows).at[:, START].add(index)
    rows = rows.at[:, TOKEN].set(jnp.where(index == 0, rows[:, TOKEN], FROM_DEVICE))
    # The fields are declared as what the host builds; inside a program they are device arrays.
    moved = batch._replace(rows=cast(np.ndarray, rows))
    if batch.rope_positions is not None:
        moved = moved._replace(rope_positions=batch.rope_positions + index)
    ints = jnp.asarray(sampling.ints).at[:, POSITION].add(index)
    moved_sampling = sampling._replace(ints=cast(np.ndarray, ints))
    logits, kv = forward(params, kv, slots, moved, model=model, backends=backends, groups=groups)
    slots, out = draw(logits, slots, moved_sampling)
    return kv, slots, out


def decode_steps(
    params: Params, kv: KVPages, slots: Slots, batch: StepBatch, sampling: SamplingRows, *,
    model: Model, backends: Backends, num_steps: int, all_greedy: bool, groups: PageGroups | None,
) -> tuple[KVPages, Slots, jax.Array]:  # fmt: skip
    """Several steps of decode rows in one program, whose tokens come together.

    `kv` and `slots` are donated, and the rows' pages reach to the last step. Returns them and int32[num_steps,
    num_rows].
    """
    draw = partial(sample, all_greedy=all_greedy, backend=backends.sampler)

    def step(carry: tuple[KVPages, Slots], index: jax.Array) -> tuple[tuple[KVPages, Slots], jax.Array]:
        kv, slots, out = decode_step(
            params, *carry, batch, sampling, index, model=model, backends=backends, draw=draw, groups=groups
        )
        return (kv, slots), out

    (kv, slots), out = lax.scan(step, (kv, slots), jnp.arange(num_steps, dtype=jnp.int32))
    return kv, slots, out


def decode_burst(
    params: Params, kv: KVPages, slots: Slots, batch: StepBatch, sampling: SamplingRows, burst: np.ndarray, *,
    model: Model, backends: Backends, groups: PageGroups | None,
) -> tuple[KVPages, Slots, jax.Array]:  # fmt: skip
    """Steps of decode rows until the host wants no more, which it is told after each: at least one.

    `kv` and `slots` are donated, and the rows' pages reach to the last step that the host may want. Returns them and
    the number of steps, int32. `burst` is the name of a `Burst`.
    """
    bursts = backends.bursts
    assert bursts is not None
    is_greedy = jnp.all(jnp.asarray(sampling.floats)[:, TEMPERATURE] == 0)

    def draw(logits: jax.Array, slots: Slots, rows: SamplingRows) -> tuple[Slots, jax.Array]:
        # Two branches of one program, because each program takes time to compile and to load.
        greedy, random = (partial(sample, all_greedy=each, backend=backends.sampler) for each in (True, False))
        drawn: tuple[Slots, jax.Array] = lax.cond(is_greedy, greedy, random, logits, slots, rows)
        return drawn

    def step(carry: tuple[KVPages, Slots, jax.Array, jax.Array]) -> tuple[KVPages, Slots, jax.Array, jax.Array]:
        kv, slots, index, _ = carry
        kv, slots, out = decode_step(
            params, kv, slots, batch, sampling, index, model=model, backends=backends, draw=draw, groups=groups
        )
        return kv, slots, index + 1, bursts.tell(out, jnp.asarray(burst))

    first = (kv, slots, jnp.int32(0), jnp.bool_(True))
    kv, slots, num_steps, _ = lax.while_loop(lambda carry: carry[3], step, first)
    return kv, slots, num_steps
