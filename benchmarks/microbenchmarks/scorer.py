"""Log likelihoods of given tokens, computed with the engine's own `forward` program."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from cache.storage import PAGE_SIZE_BY_BACKEND, KVPages
from engine.backends.backends import choose_backends, kv_dtype
from engine.backends.base.backend import Backends
from engine.backends.base.token_layout import NUM_TOKENS, START, pages_per_block
from engine.interface.config import TILE_SIZE, EngineConfig
from engine.interface.types import Progress
from engine.models.open_model import OpenModel
from engine.models.parts.model import Model
from engine.step.forward import forward
from engine.step.inputs import StepBatch
from engine.step.shapes import StepShape
from engine.weights.layout import Params, Precision
from sampling.state import Slots


class Scorer:
    """A model that is loaded as an engine configuration says, with one program that scores tokens.

    A window longer than `max_num_batched_tokens` is computed in chunks, like a long prompt.
    """

    def __init__(self, model: OpenModel, config: EngineConfig, window_size: int, progress: Progress) -> None:
        """Reads the weights and compiles the program for windows of `window_size` tokens; raises ModelError."""
        backends = choose_backends(config, model.config)
        page_size = config.page_size or PAGE_SIZE_BY_BACKEND.get(jax.default_backend(), 16)
        block = pages_per_block(page_size)
        num_pages = -(-window_size // (page_size * block)) * block
        layout = model.config.kv_layout(1 + num_pages, page_size, kv_dtype(config, backends))
        self._window_size = window_size
        self._page_table = np.arange(1, 1 + num_pages, dtype=np.int32)
        self._num_tiles = min(-(-window_size // TILE_SIZE), config.batched_tokens() // TILE_SIZE)
        self._params = model.load(backends.weights, Precision.of_engine(config), progress).params
        self._kv = layout.allocate()
        self._slots = Slots.zeros(1)
        program = jax.jit(partial(_score, model=model.model, backends=backends), donate_argnums=1)
        nothing = np.zeros(window_size, np.int32)
        self._program = program.lower(self._params, self._kv, self._slots, *self._step(nothing, 0)).compile()

    def log_likelihoods(self, window: np.ndarray) -> np.ndarray:
        """Logarithms of each token's probability after those before it in int32[window_size], without the first one."""
        if window.shape != (self._window_size,):
            raise ValueError(f"the window has the shape {window.shape}; it must be ({self._window_size},)")
        parts = []
        for start in range(0, self._window_size, self._num_tiles * TILE_SIZE):
            batch, targets = self._step(window, start)
            part, self._kv = self._program(self._params, self._kv, self._slots, batch, targets)
            parts.append(np.asarray(part))
        return np.concatenate(parts)[: self._window_size - 1]

    def _step(self, window: np.ndarray, start: int) -> tuple[StepBatch, np.ndarray]:
        """The step for the tokens of a window from `start` on, and the successor of each, int32[num_tokens]."""
        shape = StepShape(num_decode_rows=0, num_tiles=self._num_tiles)
        batch = StepBatch.padding(shape, shape.num_tokens, len(self._page_table))
        tile_starts = start + TILE_SIZE * np.arange(shape.num_tiles)
        batch.rows[:, START] = tile_starts
        batch.rows[:, NUM_TOKENS] = np.clip(len(window) - tile_starts, 0, TILE_SIZE)
        batch.page_table[:] = self._page_table
        batch.sampled[:] = np.arange(shape.num_tokens)
        known = window[start : start + shape.num_tokens]
        batch.tile_tokens.reshape(-1)[: len(known)] = known
        successors = window[start + 1 : start + 1 + shape.num_tokens]
        targets = np.zeros(shape.num_tokens, np.int32)
        targets[: len(successors)] = successors
        return batch, targets


def _score(
    params: Params, kv: KVPages, slots: Slots, batch: StepBatch, targets: jax.Array, *, model: Model, backends: Backends
) -> tuple[jax.Array, KVPages]:
    """Computes one step, donating `kv`, and the log probabilities of the targets instead of all logits."""
    logits, kv = forward(params, kv, slots, batch, model=model, backends=backends, groups=None)
    chosen = jnp.take_along_axis(logits, targets[:, None], axis=1)[:, 0]
    return chosen - jax.nn.logsumexp(logits, axis=1), kv
