"""The portable body: everything in XLA."""

from __future__ import annotations

from engine.backends.base.backend import Backend
from engine.backends.base.model_config import ModelConfig
from engine.backends.xla.arrays import empty
from engine.backends.xla.attention import attend
from engine.backends.xla.matrices import ArrayLayout
from engine.backends.xla.products import XlaProducts
from sampling.sampler import PORTABLE


def _load() -> str:
    """There is nothing to load, and nothing to tell of it."""
    return ""


def _serves_all(model: ModelConfig) -> None:
    """There are no sizes that do not fit."""
    return


BODY = Backend(
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
