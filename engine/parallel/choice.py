"""On which devices an engine computes, and with which backends: decided once at its start."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from engine.backends.backends import choose_bodies
from engine.backends.base.backend import Backends
from engine.interface.config import EngineConfig
from engine.models.parts.model import Model
from engine.parallel.mesh import open_mesh, refuse_unsplittable
from engine.parallel.placement import OneDevice, OverMesh, Placement
from engine.parallel.split_products import bodies_on
from engine.weights.layout import Params


def choose_devices(config: EngineConfig, model: Model) -> tuple[Backends, Callable[[Params], Placement]]:
    """The backends, and what makes the placement of weights that they have laid out.

    Raises:
        ValueError: the model cannot be split so, there are too few devices, or a body is asked for and cannot be had.
    """
    if config.tensor_parallel == 1:
        return choose_bodies(config, model.config), lambda params: OneDevice()
    refuse_unsplittable(model, config.tensor_parallel)
    mesh = open_mesh(config.tensor_parallel, config.num_hosts)
    return bodies_on(mesh, config), partial(OverMesh, mesh)
