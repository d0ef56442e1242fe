"""The mesh of devices that compute one model together, and which models can be split over them.

Every device runs the same program on its share of the heads, of the columns of the feed-forward blocks or of the
experts, and of the vocabulary; the results of a half layer are added up over all devices (Shoeybi et al.,
"Megatron-LM", 2019). Tokens, slots and everything that samples are replicated.
"""

import dataclasses
from typing import TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from engine.models.parts.decoder import Decoder, QueryKeyNorm
from engine.models.parts.model import Model
from engine.weights.leaf import Leaf, LeafKind, Split

AXIS = "model"  # the only axis of the mesh

AnyModel = TypeVar("AnyModel", bound=Model)


def open_mesh(num_devices: int, num_hosts: int = 1) -> Mesh:
    """The first devices of each process, equally many of each, in order of processes; raises ValueError for too few."""
    share = num_devices // num_hosts
    devices: list[jax.Device] = []
    for index in range(num_hosts):
        found = [device for device in jax.devices() if device.process_index == index]
        if share > len(found):
            raise ValueError(_too_few(num_devices, num_hosts, index, len(found)))
        devices += found[:share]
    return Mesh(np.array(devices), (AXIS,))


def _too_few(num_devices: int, num_hosts: int, index: int, num_found: int) -> str:
    share = num_devices // num_hosts
    wanted = "" if num_hosts == 1 else f" over {num_hosts} hosts"
    process = "this process" if index == jax.process_index() else f"host {index}"
    hint = (
        f"; XLA_FLAGS=--xla_force_host_platform_device_count={share} makes a CPU look like so many, for tests"
        if jax.default_backend() == "cpu"
        else ""
    )
    return (
        f"tensor_parallel is {num_devices}{wanted}, but {process} has {num_found} "
        f"{jax.default_backend()} device{'' if num_found == 1 else 's'}{hint}"
    )


def on_every_device(mesh: Mesh, leaf: np.ndarray | jax.Array) -> jax.Array:
    """Replicates an array of the host, or of one device, over the mesh; each process places its own copies."""
    copies = [jax.device_put(leaf, device) for device in mesh.local_devices]
    return jax.make_array_from_single_device_arrays(np.shape(leaf), NamedSharding(mesh, PartitionSpec()), copies)


def refuse_unsplittable(model: Model, num_devices: int) -> None:
    """Raises ValueError for a model whose parts do not divide by the number of devices, and names them."""
    if not model.can_be_split:
        raise ValueError(f"tensor_parallel is {num_devices}, which this architecture cannot be split over")
    if isinstance(model, Decoder) and model.query_key_norm is QueryKeyNorm.ALL:
        raise ValueError(
            f"tensor_parallel is {num_devices}, but this architecture norms all heads of a token at once, "
            "which devices that have some of the heads each cannot"
        )
    if model.config.norms_heads_outside_attention:
        raise ValueError(
            f"tensor_parallel is {num_devices}, which a model whose heads have norms of their own cannot be split over"
        )
    if model.config.has_distance_biases:
        raise ValueError(
            f"tensor_parallel is {num_devices}, which a model with biases by distance (ALiBi) cannot be split over"
        )
    sizes = {"heads": model.config.num_heads, "heads of keys": model.config.num_kv_heads}
    for leaf in model.all_leaves():
        sizes.update(_divided_sizes(leaf))
    for name, size in sizes.items():
        if size % num_devices:
            raise ValueError(f"tensor_parallel is {num_devices}, which does not divide the model's {size} {name}")


def local_model(model: AnyModel, num_devices: int) -> AnyModel:
    """The model as each device computes it: with its share of the heads."""
    config = dataclasses.replace(
        model.config,
        num_heads=model.config.num_heads // num_devices,
        num_kv_heads=model.config.num_kv_heads // num_devices,
    )
    return dataclasses.replace(model, config=config)


def _divided_sizes(leaf: Leaf) -> dict[str, int]:
    """The sizes of a leaf that must divide by the number of devices, by names for messages; vocabularies are padded."""
    if leaf.kind is LeafKind.EMBEDDING:
        return {}
    match leaf.split:
        case Split.OUTPUTS:
            return {f"outputs of {leaf.name!r}": part.shape[0] for part in leaf.parts}
        case Split.INPUTS:
            return {f"inputs of {leaf.name!r}": part.shape[1] for part in leaf.parts}
        case Split.EXPERTS:
            return {"experts": leaf.num_experts}
        case Split.HEADS | Split.REPLICATED:
            return {}
