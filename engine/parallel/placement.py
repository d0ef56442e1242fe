"""Where arrays lie and programs run, for one device and for several in the same words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, Protocol, TypeVar

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cache.storage import KVLayout, KVPages
from engine.models.parts.model import Model
from engine.parallel.mesh import AXIS, local_model, on_every_device
from engine.weights.layout import Params

Tree = TypeVar("Tree")
Backend = Callable[..., Any]


class Kind(Enum):
    """What an argument or a result of a program is, which decides how it is split."""

    PARAMS = "params"
    PAGES = "pages"
    SAME = "same"  # on every device alike


class Placement(Protocol):
    """The devices of one engine."""

    def model(self, model: Model) -> Model:
        """The model as a device computes it."""

    def allocate(self, layout: KVLayout, empty: Callable[[KVPages], KVPages]) -> KVPages:
        """Makes the pages."""

    def put(self, tree: Tree) -> Tree:
        """Puts arrays on every device alike."""

    def put_params(self, params: Params) -> Params:
        """Puts weights back that were moved to host memory."""

    def abstract(self, tree: Tree) -> Tree:
        """The same tree with what a program must know of its arrays in their place."""

    def abstract_array(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        """An array that a program makes on every device alike."""

    def spread(self, body: Backend, takes: Sequence[Kind], gives: Sequence[Kind]) -> Backend:
        """A program's body as it runs on all devices.

        Args:
            takes: of its arguments.
            gives: of the tuple that it returns, or of the one array.
        """


class OneDevice:
    """The `Placement` on JAX's first device; everything stays as it is."""

    def model(self, model: Model) -> Model:
        return model

    def allocate(self, layout: KVLayout, empty: Callable[[KVPages], KVPages]) -> KVPages:
        return layout.allocate(empty=empty)

    def put(self, tree: Tree) -> Tree:
        return tree

    def put_params(self, params: Params) -> Params:
        # jnp.asarray would compile a program for each host array.
        placed: Params = jax.tree.map(jax.device_put, params)
        return placed

    def abstract(self, tree: Tree) -> Tree:
        return shapes_of(tree)

    def abstract_array(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype)

    def spread(self, body: Backend, takes: Sequence[Kind], gives: Sequence[Kind]) -> Backend:
        return body


class OverMesh:
    """The `Placement` of one model over all devices of a mesh."""

    def __init__(self, mesh: Mesh, params: Params) -> None:
        """
        Args:
            params: as `SplitLayout` has placed them.
        """
        self._mesh = mesh
        self._shardings = jax.tree.map(lambda leaf: leaf.sharding, params)
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._specs = {
            Kind.PARAMS: jax.tree.map(lambda sharding: sharding.spec, self._shardings),
            Kind.PAGES: PartitionSpec(None, None, None, AXIS),  # the heads, of data and of scales
            Kind.SAME: PartitionSpec(),
        }

    def model(self, model: Model) -> Model:
        return local_model(model, self._mesh.size)

    def allocate(self, layout: KVLayout, empty: Callable[[KVPages], KVPages]) -> KVPages:
        return layout.allocate(self._mesh, AXIS, empty=empty)

    def put(self, tree: Tree) -> Tree:
        placed: Tree = jax.tree.map(partial(on_every_device, self._mesh), tree)
        return placed

    def put_params(self, params: Params) -> Params:
        placed: Params = jax.device_put(params, self._shardings)
        return placed

    def abstract(self, tree: Tree) -> Tree:
        mapped: Tree = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None)), tree
        )
        return mapped

    def abstract_array(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self._everywhere)

    def spread(self, body: Backend, takes: Sequence[Kind], gives: Sequence[Kind]) -> Backend:
        results = tuple(self._specs[kind] for kind in gives)
        return jax.shard_map(
            body,
            mesh=self._mesh,
            in_specs=tuple(self._specs[kind] for kind in takes),
            out_specs=results if len(results) > 1 else results[0],
            check_vma=False,  # a result on every device alike is one by our reading, such as that of a gathered head
        )


def shapes_of(tree: Tree) -> Tree:
    """The same tree with shapes and dtypes in place of arrays."""
    mapped: Tree = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
    return mapped
