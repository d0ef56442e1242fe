"""Where arrays lie and programs run, for one device and for several in the same words."""

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cache.storage import KVLayout, KVPages
from engine.adapters.pair_placement import PairPlacement
from engine.backends.backends import choose_backends
from engine.backends.base.backend import Backends
from engine.interface.config import EngineConfig
from engine.models.parts.model import Model
from engine.parallel.mesh import AXIS, local_model, on_every_device, open_mesh, refuse_unsplittable
from engine.parallel.split_pairs import SplitPlacement
from engine.parallel.split_products import backends_on
from engine.weights.layout import Params

Tree = TypeVar("Tree")
Program = Callable[..., Any]


class Kind(Enum):
    """What an argument or a result of a program is, which decides how it is split."""

    PARAMS = "params"
    PAGES = "pages"
    SAME = "same"  # on every device alike


class Placement:
    """The devices of one engine; this class is the placement on JAX's first device."""

    def model(self, model: Model) -> Model:
        """The model as a device computes it."""
        return model

    def allocate(self, layout: KVLayout, empty: Callable[[KVPages], KVPages]) -> KVPages:
        """Makes the pages."""
        return layout.allocate(empty=empty)

    def put(self, tree: Tree) -> Tree:
        """Replicates arrays over the devices."""
        return tree

    def put_params(self, params: Params) -> Params:
        """Puts weights on the devices that were moved to host memory."""
        # jnp.asarray would compile a program for each host array.
        placed: Params = jax.tree.map(jax.device_put, params)
        return placed

    def abstract(self, tree: Tree) -> Tree:
        """The same tree with abstract arrays, from which programs are lowered."""
        return shapes_of(tree)

    def abstract_array(self, shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        """An array that a program replicates over the devices."""
        return jax.ShapeDtypeStruct(shape, dtype)

    def spread(self, program: Program, takes: Sequence[Kind], gives: Sequence[Kind]) -> Program:
        """A program as it runs on all devices."""
        return program


class OverMesh(Placement):
    """The `Placement` of one model over all devices of a mesh."""

    def __init__(self, mesh: Mesh, params: Params) -> None:
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

    def spread(self, program: Program, takes: Sequence[Kind], gives: Sequence[Kind]) -> Program:
        results = tuple(self._specs[kind] for kind in gives)
        return jax.shard_map(
            program,
            mesh=self._mesh,
            in_specs=tuple(self._specs[kind] for kind in takes),
            out_specs=results if len(results) > 1 else results[0],
            check_vma=False,  # a result on every device alike is one by our reading, such as that of a gathered head
        )


def shapes_of(tree: Tree) -> Tree:
    """The same tree with shapes and dtypes in place of arrays."""
    mapped: Tree = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
    return mapped


class Devices(NamedTuple):
    """What computes a model, and where its arrays lie."""

    backends: Backends
    place: Callable[[Params], Placement]  # makes the placement of weights that the backends have laid out
    pairs: PairPlacement  # of adapters


def choose_devices(config: EngineConfig, model: Model) -> Devices:
    """The devices of a model by the configuration; raises ValueError."""
    if config.tensor_parallel == 1:
        return Devices(
            choose_backends(config, model.config, model.encoder_inputs), lambda params: Placement(), PairPlacement()
        )
    refuse_unsplittable(model, config.tensor_parallel)
    mesh = open_mesh(config.tensor_parallel, config.num_hosts)
    return Devices(backends_on(mesh, config), partial(OverMesh, mesh), SplitPlacement(mesh))
