"""The portable body: everything in XLA."""

from __future__ import annotations

from engine.kernels.interface.body import Body
from engine.kernels.interface.model_config import ModelConfig
from engine.kernels.xla.arrays import empty
from engine.kernels.xla.attention import attend
from engine.kernels.xla.matrices import ArrayLayout
from engine.kernels.xla.products import XlaProducts
from sampling.sampler import PORTABLE


def _load() -> str:
    """There is nothing to load, and nothing to tell of it."""
    return ""


def _serves_all(model: ModelConfig) -> None:
    """There are no sizes that do not fit."""
    return


BODY = Body(
    name="xla",
    load=_load,
    misfit_of_products=_serves_all,
    misfit_of_attention=_serves_all,
    weights=ArrayLayout(),
    products=XlaProducts(),
    sampler=PORTABLE,
    attention=attend,
    kv_dtype="float32",
    is_opaque_to_xla=False,
    empty=empty,
)
