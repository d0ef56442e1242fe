"""The arrays of one engine on its device: weights, KV pages, last tokens and sampler states."""

import gc
from collections.abc import Callable

import jax
import numpy as np

from cache.storage import KVLayout
from engine.backends.base.backend import Backends
from engine.parallel.placement import OverMesh, Placement, shapes_of
from engine.step.page_memory import PageMemory
from engine.weights.host_memory import give_back_freed, large_array
from engine.weights.layout import Params
from sampling.processors.logits_processor import StateShape
from sampling.state import Slots, state_shapes


class DeviceArrays:
    """Holds the arrays that programs take and return, and frees and allocates them when an engine sleeps and wakes."""

    def __init__(
        self, params: Params, backends: Backends, layout: KVLayout, state_shape: StateShape, placement: Placement
    ) -> None:
        self.params = params
        self.kv = placement.allocate(layout, backends.empty)
        self.slots = placement.put(Slots.zeros(state_shape.num_slots))
        self.states = placement.put(backends.empty(state_shapes(state_shape)))
        self.placement = placement
        self._layout = layout
        self._backends = backends
        self._page_memory: PageMemory | None = None  # None: closed, or the device has its own, or there are several

    # ---------------------------------------------------------------- weights

    @property
    def has_weights(self) -> bool:
        """Whether the weights are in memory, of the device or of the host."""
        return not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(self.params))

    def accepts(self, params: Params) -> bool:
        """Whether the compiled programs accept these weights, because all shapes and formats are the same."""
        return bool(shapes_of(params) == shapes_of(self.params))

    def move_weights_to_host(self) -> None:
        """Copies the weights to host memory and frees those of the device."""
        host = jax.tree.map(_host_copy, self.params)
        for leaf in jax.tree.leaves(self.params):
            leaf.delete()
        self.params = host

    def put_weights(self) -> None:
        """Puts weights on the device that were moved to host memory."""
        self.params = self.placement.put_params(self.params)

    def forget_weights(self) -> None:
        """Frees the memory of the weights and keeps only their shapes and types; new `params` must be set later."""
        arrays = [leaf for leaf in jax.tree.leaves(self.params) if isinstance(leaf, jax.Array)]
        self.params = shapes_of(self.params)
        for array in arrays:
            array.delete()
        del arrays
        # On a CPU the arrays lie in numpy's memory, which JAX releases in a callback of the garbage collector. The
        # youngest generation is enough, and takes no time.
        gc.collect(0)
        give_back_freed()

    # ---------------------------------------------------------------- pages

    def allocate_pages(self) -> None:
        """Allocates the pages again after `free_pages`; their former content is lost."""
        self.kv = self.placement.allocate(self._layout, self._backends.empty)

    def free_pages(self) -> None:
        """Frees the memory of the pages."""
        self.close()
        for leaf in jax.tree.leaves(self.kv):
            leaf.delete()

    def start(self, wait: Callable[[], object]) -> None:
        """Starts the thread that populates a CPU's page memory, once `wait` returns; nothing may be in flight."""
        # They are deleted while the engine sleeps, and take no memory where no layer attends.
        has_pages = not self.kv.data.is_deleted() and self.kv.data.size > 0
        is_on_host = jax.default_backend() == "cpu" and not isinstance(self.placement, OverMesh)
        if self._page_memory is None and has_pages and is_on_host:
            self._page_memory = PageMemory(self.kv, wait)

    def close(self) -> None:
        """Ends that thread; `start` starts it again. Idempotent; never raises."""
        memory, self._page_memory = self._page_memory, None
        if memory is not None:
            memory.close()

    def reach(self, num_pages: int) -> None:
        """Notes that the first `num_pages` pages are in use or have been since they were allocated."""
        memory = self._page_memory  # another thread may close it
        if memory is not None:
            memory.reach(num_pages)


def _host_copy(leaf: jax.Array) -> np.ndarray:
    """Copies a device array to host memory; on CPU a view would keep the device's memory, or read it once freed."""
    copy = large_array(leaf.shape, leaf.dtype)
    np.copyto(copy, np.asarray(leaf))
    return copy
