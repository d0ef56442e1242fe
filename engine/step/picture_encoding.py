"""Encodes pictures between steps, one piece a turn, so that streams wait for no whole picture."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cache.storage import KVPages
from engine.models.encoders.vision_encoder import VisionEncoder
from engine.schedule.picture_cache import EncodeJob, PictureCache
from engine.step.compiled import CompiledPrograms
from engine.weights.layout import Params

if TYPE_CHECKING:
    from engine.step.device_arrays import DeviceArrays

BEGIN, LAYER, END = "encode begin", "encode layer", "encode end"  # keys of its programs


def store(params: Params, kv: KVPages, x: jax.Array, entry: jax.Array, *, encoder: VisionEncoder) -> KVPages:
    """Ends the encoder's work, and writes the embeddings to an entry of `kv`, which is donated."""
    assert kv.pictures is not None
    embeddings = encoder.end(params, x).astype(kv.pictures.dtype)
    return kv._replace(pictures=lax.dynamic_update_slice(kv.pictures, embeddings, (entry * encoder.num_tokens, 0)))


def lowerings(
    params: Params, kv: KVPages, encoder: VisionEncoder
) -> dict[Hashable, Callable[[], jax.stages.Lowered]]:  # fmt: skip
    """What lowers the three programs of an encoder, from abstract arrays."""
    index = jax.ShapeDtypeStruct((), jnp.int32)
    pixels = jax.ShapeDtypeStruct((encoder.height, encoder.width, 3), jnp.uint8)
    x = jax.ShapeDtypeStruct(encoder.inner_shape, jnp.float32)
    finish = jax.jit(partial(store, encoder=encoder), donate_argnums=1)
    return {
        BEGIN: partial(jax.jit(encoder.begin).lower, params, pixels),
        LAYER: partial(jax.jit(encoder.layer).lower, params, x, index),
        END: partial(finish.lower, params, kv, x, index),
    }


class PictureEncoding:
    """Works through the jobs of a cache of pictures. Only the engine thread uses it."""

    def __init__(
        self, cache: PictureCache, arrays: DeviceArrays, compiled: CompiledPrograms, encoder: VisionEncoder
    ) -> None:
        self.cache = cache
        self.num_runs = 0  # pictures that were encoded
        self._arrays = arrays
        self._compiled = compiled
        self._num_layers = encoder.num_layers
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
            self._inner, self._next_layer = self._compiled[BEGIN](params, job.pixels), 0
            return True
        self._inner.block_until_ready()
        if self._next_layer < self._num_layers:
            self._inner = self._compiled[LAYER](params, self._inner, np.int32(self._next_layer))
            self._next_layer += 1
            return True
        self._arrays.kv = self._compiled[END](params, self._arrays.kv, self._inner, np.int32(job.entry))
        self._job = self._inner = None
        self.num_runs += 1
        self.cache.encoded(job)
        return True
