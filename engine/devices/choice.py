"""On which devices an engine computes, and with which bodies: decided once at its start."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from engine.border.config import EngineConfig
from engine.devices.mesh import open_mesh, refuse_unsplittable
from engine.devices.placement import OneDevice, OverMesh, Placement
from engine.devices.split_products import bodies_on
from engine.kernels.bodies import choose_bodies
from engine.kernels.interface.body import Bodies
from engine.models.parts.model import Model
from engine.weights.layout import Params


def choose_devices(config: EngineConfig, model: Model) -> tuple[Bodies, Callable[[Params], Placement]]:
    """The bodies, and what makes the placement of weights that they have laid out.

    Raises:
        ValueError: the model cannot be split so, there are too few devices, or a body is asked for and cannot be had.
    """
    if config.tensor_parallel == 1:
        return choose_bodies(config, model.config), lambda params: OneDevice()
    refuse_unsplittable(model, config.tensor_parallel)
    mesh = open_mesh(config.tensor_parallel, config.num_hosts)
    return bodies_on(mesh, config), partial(OverMesh, mesh)
