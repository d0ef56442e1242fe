"""Encodes pictures beside steps, in a thread of their own, so that streams wait for no picture."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import KVPages
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

# Keys of its programs.
BEGIN, LAYER, END, STORE = "encode begin", "encode layer", "encode end", "encode store"


def store(kv: KVPages, embeddings: jax.Array, positions: jax.Array, *, encoder: VisionEncoder) -> KVPages:
    """Writes the embeddings of a picture to `kv`, which is donated.

    `positions` are int32[bucket], beyond the last one where the picture has no token.
    """
    assert kv.pictures is not None
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
    """What lowers the four programs of an encoder for each bucket, from abstract arrays."""
    index, grid = jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((2,), jnp.int32)
    # A device may round what it multiplies, as native kernels do, where nothing has to be exact.
    traced: Callable[[Callable[..., Any]], Callable[..., Any]] = unrounded if backends.is_exact else lambda each: each
    begin = jax.jit(traced(encoder.begin))
    layer = jax.jit(traced(partial(encoder.run_layer, backends=backends)), donate_argnums=1)
    end = jax.jit(traced(partial(encoder.run_end, backends=backends)))
    finish = jax.jit(partial(store, encoder=encoder), donate_argnums=0)
    programs: dict[Hashable, Callable[[], jax.stages.Lowered]] = {}
    for bucket in encoder.buckets(max_model_len):
        pixels = jax.ShapeDtypeStruct(encoder.pixels_shape(bucket), jnp.uint8)
        x = jax.ShapeDtypeStruct(encoder.inner_shape(bucket), jnp.float32)
        embeddings = jax.ShapeDtypeStruct(encoder.embeddings_shape(bucket), jnp.float32)
        positions = jax.ShapeDtypeStruct((bucket,), jnp.int32)
        programs[BEGIN, bucket] = partial(begin.lower, params, pixels, grid)
        programs[LAYER, bucket] = partial(layer.lower, params, x, grid, index)
        programs[END, bucket] = partial(end.lower, params, x, grid)
        programs[STORE, bucket] = partial(finish.lower, kv, embeddings, positions)
    return programs


@dataclass(slots=True, eq=False)
class _Picture:
    """A picture that is being encoded."""

    job: EncodeJob
    bucket: int
    thread: threading.Thread | None = None
    is_cancelled: bool = False
    has_ended: threading.Event = field(default_factory=threading.Event)
    embeddings: jax.Array | None = None
    error: BaseException | None = None


class PictureEncoding:
    """Works through the jobs of a cache of pictures. Only the engine thread uses it.

    The programs of a picture run beside steps, in a thread of their own, because JAX runs one after the other what one
    thread has enqueued. Native kernels take turns at the processor with those of steps, in pieces of milliseconds.
    """

    def __init__(
        self, cache: PictureCache, arrays: DeviceArrays, compiled: CompiledPrograms, encoder: VisionEncoder,
        max_model_len: int,
    ) -> None:  # fmt: skip
        self.cache = cache
        self.num_runs = 0  # pictures that were encoded
        self.on_end: Callable[[], None] = lambda: None  # called in the thread of a picture that `advance` may store
        self._arrays = arrays
        self._compiled = compiled
        self._encoder = encoder
        self._buckets = encoder.buckets(max_model_len)
        self._picture: _Picture | None = None  # that is encoded
        self._turn = threading.Condition()
        self._is_held = False
        self._is_computing = False

    @property
    def is_busy(self) -> bool:
        """Whether a picture is being encoded."""
        return self._picture is not None

    def advance(self) -> bool:
        """Stores a picture that has been encoded, and begins with the next one; returns whether it stored one."""
        has_stored = self._store()
        if self._picture is None:
            job = self.cache.next_job()
            if job is not None:
                bucket = next(bucket for bucket in self._buckets if bucket >= job.picture.num_tokens)
                self._begin(_Picture(job, bucket))
        return has_stored

    @contextmanager
    def held(self) -> Iterator[None]:
        """While it is entered, no program runs, so that what these read may change."""
        with self._turn:
            self._is_held = True
            self._turn.wait_for(lambda: not self._is_computing)
        try:
            yield
        finally:
            with self._turn:
                self._is_held = False
                self._turn.notify_all()

    def close(self) -> None:
        """Ends the thread of a picture after the program that it is at; a later `advance` begins with it anew."""
        picture, self._picture = self._picture, None
        if picture is None:
            return
        picture.is_cancelled = True
        if picture.thread is not None:
            picture.thread.join()
        self.cache.put_back(picture.job)

    def _begin(self, picture: _Picture) -> None:
        self._picture = picture
        thread = threading.Thread(target=self._encode, args=(picture,), name="eagre-pictures", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError):  # the system gives no thread
            self._encode(picture)
        else:
            picture.thread = thread

    def _store(self) -> bool:
        picture = self._picture
        if picture is None or not picture.has_ended.is_set():
            return False
        self._picture = None
        if picture.error is not None:
            self.cache.put_back(picture.job)
            raise picture.error
        if picture.embeddings is None or picture.job.is_dropped:
            return False
        at = picture.job.positions
        beyond = np.full(picture.bucket - len(at), np.iinfo(np.int32).max, np.int32)
        program = self._compiled[STORE, picture.bucket]
        self._arrays.kv = program(self._arrays.kv, picture.embeddings, np.concatenate([at, beyond]))
        self.num_runs += 1
        self.cache.encoded(picture.job)
        return True

    def _encode(self, picture: _Picture) -> None:
        """The function of a picture's thread."""
        try:
            picture.embeddings = self._embeddings(picture)
        except BaseException as error:  # noqa: BLE001
            picture.error = error  # for the engine thread
        finally:
            picture.has_ended.set()
            self.on_end()

    def _embeddings(self, picture: _Picture) -> jax.Array | None:
        """float32[bucket, num_features]; None where they are not wanted any more."""
        pixels = _padded(picture.job.picture.pixels, self._encoder.pixels_shape(picture.bucket))
        x = self._run(BEGIN, picture, pixels)
        for layer in range(self._encoder.num_layers):
            if x is not None:
                x = self._run(LAYER, picture, x, np.int32(layer))
        return None if x is None else self._run(END, picture, x)

    def _run(self, kind: str, picture: _Picture, x: jax.Array | np.ndarray, *index: np.int32) -> jax.Array | None:
        """Runs a program to its end, so that whoever waits for a turn waits for this one alone."""
        with self._turn:
            self._turn.wait_for(lambda: not self._is_held)
            if picture.is_cancelled or picture.job.is_dropped:
                return None
            self._is_computing = True
        try:
            program, grid = self._compiled[kind, picture.bucket], np.array(picture.job.picture.grid, np.int32)
            result: jax.Array = program(self._arrays.params, x, grid, *index)
            return result.block_until_ready()
        finally:
            with self._turn:
                self._is_computing = False
                self._turn.notify_all()


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
    encoder: VisionEncoder | None, positions: tuple[int, int] | None, max_model_len: int, max_num_batched_tokens: int
) -> PictureInput | None:
    """What the server has to know of the model's pictures; `positions` are those of `picture_positions`."""
    if encoder is None or positions is None:
        return None
    num_kept = positions[0] // encoder.num_tokens
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
