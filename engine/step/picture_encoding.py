"""Encodes pictures between steps, one piece a turn, so that streams wait for no whole picture."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVLayout, KVPages
from engine.backends.base.backend import Backends
from engine.backends.base.unrounded import unrounded
from engine.interface.types import PictureInput
from engine.models.encoders.vision_encoder import END_BASE, VisionEncoder
from engine.schedule.picture_cache import EncodeJob, PictureCache
from engine.step.compiled import CompiledPrograms
from engine.weights.layout import Params

if TYPE_CHECKING:
    from engine.step.device_arrays import DeviceArrays

MAX_PICTURES_KEPT = 32  # whose embeddings are in memory, or more, if they are small
MAX_PICTURE_POSITIONS_KEPT = 8192

BEGIN, LAYER, END = "encode begin", "encode layer", "encode end"  # keys of its programs


def store(
    params: Params, kv: KVPages, x: jax.Array, grid: jax.Array, positions: jax.Array, *,
    encoder: VisionEncoder, backends: Backends,
) -> KVPages:  # fmt: skip
    """Ends the encoder's work, and writes the embeddings to `kv`, which is donated.

    `positions` are int32[bucket], beyond the last one where the picture has no token.
    """
    assert kv.pictures is not None
    embeddings = encoder.run_end(params, x, grid, backends=backends)
    if encoder.stores_ends:
        num_tokens = jnp.sum(positions < len(kv.pictures))
        num_behind = jnp.maximum(num_tokens - 1 - jnp.arange(len(positions)), 0)
        digits = jnp.stack(jnp.divmod(num_behind, END_BASE), axis=1)
        embeddings = jnp.concatenate([embeddings, digits.astype(embeddings.dtype)], axis=1)
    embeddings = embeddings.astype(kv.pictures.dtype)
    return kv._replace(pictures=kv.pictures.at[positions].set(embeddings, mode="drop"))


def lowerings(
    params: Params, kv: KVPages, encoder: VisionEncoder, max_model_len: int, backends: Backends
) -> dict[Hashable, Callable[[], jax.stages.Lowered]]:  # fmt: skip
    """What lowers the three programs of an encoder for each bucket, from abstract arrays."""
    index, grid = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((2,), jnp.int32)
    # A device may round what it multiplies, as native kernels do, where nothing has to be exact.
    traced: Callable[[Callable[..., Any]], Callable[..., Any]] = unrounded if backends.is_exact else lambda each: each
    begin = jax.jit(traced(encoder.begin))
    layer = jax.jit(traced(partial(encoder.run_layer, backends=backends)), donate_argnums=1)
    finish = jax.jit(traced(partial(store, encoder=encoder, backends=backends)), donate_argnums=1)
    programs: dict[Hashable, Callable[[], jax.stages.Lowered]] = {}
    for bucket in encoder.buckets(max_model_len):
        pixels = jax.ShapeDtypeStruct(encoder.pixels_shape(bucket), jnp.uint8)
        x = jax.ShapeDtypeStruct(encoder.inner_shape(bucket), jnp.float32)
        positions = jax.ShapeDtypeStruct((bucket,), jnp.int32)
        programs[BEGIN, bucket] = partial(begin.lower, params, pixels, grid)
        programs[LAYER, bucket] = partial(layer.lower, params, x, grid, index)
        programs[END, bucket] = partial(finish.lower, params, kv, x, grid, positions)
    return programs


class PictureEncoding:
    """Works through the jobs of a cache of pictures. Only the engine thread uses it."""

    def __init__(
        self, cache: PictureCache, arrays: DeviceArrays, compiled: CompiledPrograms, encoder: VisionEncoder,
        max_model_len: int,
    ) -> None:  # fmt: skip
        self.cache = cache
        self.num_runs = 0  # pictures that were encoded
        self._arrays = arrays
        self._compiled = compiled
        self._encoder = encoder
        self._buckets = encoder.buckets(max_model_len)
        self._bucket = 0  # of the job
        self._grid = np.zeros(2, np.int32)
        self._job: EncodeJob | None = None
        self._inner: jax.Array | None = None  # what goes through the layers; None: the job has not begun
        self._next_layer = 0

    def advance(self) -> bool:
        """Enqueues one piece of the next picture's work; returns whether there was any.

        It waits for the piece before, because a step that is dispatched behind many pieces would wait for all.
        """
        if self._job is not None and self._job.is_dropped:
            self._job = self._inner = None
        if self._job is None:
            self._job = self.cache.next_job()
        if self._job is None:
            return False
        params, job = self._arrays.params, self._job
        if self._inner is None:
            self._bucket = next(bucket for bucket in self._buckets if bucket >= job.picture.num_tokens)
            self._grid = np.array(job.picture.grid, np.int32)
            pixels = _padded(job.picture.pixels, self._encoder.pixels_shape(self._bucket))
            self._inner, self._next_layer = self._compiled[BEGIN, self._bucket](params, pixels, self._grid), 0
            return True
        self._inner.block_until_ready()
        if self._next_layer < self._encoder.num_layers:
            layer = self._compiled[LAYER, self._bucket]
            self._inner = layer(params, self._inner, self._grid, np.int32(self._next_layer))
            self._next_layer += 1
            return True
        beyond = np.full(self._bucket - len(job.positions), np.iinfo(np.int32).max, np.int32)
        positions = np.concatenate([job.positions, beyond])
        self._arrays.kv = self._compiled[END, self._bucket](params, self._arrays.kv, self._inner, self._grid, positions)
        self._job = self._inner = None
        self.num_runs += 1
        self.cache.encoded(job)
        return True


def _padded(pixels: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The colours of a picture with patches of zeros behind them; a still one is taken for a video of equal frames."""
    if pixels.shape == shape:
        return pixels
    if pixels.ndim + 1 == len(shape):
        pixels = pixels[:, None]
    padded = np.zeros(shape, np.uint8)
    padded[: len(pixels)] = pixels
    return padded


def _num_pictures(encoder: VisionEncoder, max_model_len: int) -> int:
    """Pictures whose embeddings are kept."""
    largest = -(-encoder.buckets(max_model_len)[-1] // encoder.num_tokens)
    most = max(MAX_PICTURES_KEPT, MAX_PICTURE_POSITIONS_KEPT // encoder.num_tokens, largest)
    return min(most, -(-max_model_len // encoder.num_tokens))


def picture_positions(encoder: VisionEncoder | None, max_model_len: int) -> tuple[int, int] | None:
    """Positions and features of the embeddings of pictures."""
    if encoder is None:
        return None
    return _num_pictures(encoder, max_model_len) * encoder.num_tokens, encoder.num_features


def picture_input(
    encoder: VisionEncoder | None, layout: KVLayout, max_model_len: int, max_num_batched_tokens: int
) -> PictureInput | None:
    """What the server has to know of the model's pictures."""
    if encoder is None or layout.pictures is None:
        return None
    num_kept = layout.pictures[0] // encoder.num_tokens
    max_tokens = encoder.buckets(max_model_len)[-1]
    if encoder.stores_ends:  # all tokens of a picture are computed in one step, perhaps behind one of text
        max_tokens = min(max_tokens, max_num_batched_tokens - 2)
    return PictureInput(
        encoder.height,
        encoder.width,
        encoder.num_tokens,
        num_kept,
        max_tokens,
        uses_mrope=encoder.uses_mrope,
        pixels_shape=encoder.pixels_shape(max_tokens),
        num_frames=encoder.num_frames_a_patch,
        is_tiled=encoder.is_tiled,
    )
