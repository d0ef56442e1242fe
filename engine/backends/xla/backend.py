"""The record of the portable backend."""

from collections.abc import Mapping

import jax.numpy as jnp

from engine.backends.base.backend import Backend
from engine.backends.base.empty_arrays import EmptyArrays
from engine.backends.base.model_config import ModelConfig
from engine.backends.xla.attention import attend
from engine.backends.xla.matrices import ArrayLayout, default_dtype
from engine.backends.xla.patch_attention import attend_patches
from engine.backends.xla.products import XlaProducts
from engine.backends.xla.recurrence import gated_delta
from engine.backends.xla.state_space import convolution, state_space
from sampling.sampler import PORTABLE


def _load() -> str:
    """Nothing to load, and nothing to report."""
    return ""


def _serves_all(model: ModelConfig) -> None:
    """Every size is supported."""
    return


def _encodes_all(inputs: Mapping[str, int]) -> None:
    """Every size is supported."""
    return


BACKEND = Backend(
    name="xla",
    load=_load,
    products_unsupported_reason=_serves_all,
    attention_unsupported_reason=_serves_all,
    encoder_unsupported_reason=_encodes_all,
    weights=ArrayLayout(),
    products=XlaProducts(),
    sampler=PORTABLE,
    attention=attend,
    patch_attention=attend_patches,
    recurrence=gated_delta,
    convolution=convolution,
    state_space=state_space,
    kv_dtype=default_dtype,
    bursts=None,
    is_opaque_to_xla=False,
    empty=EmptyArrays(lambda shape: jnp.zeros(shape.shape, shape.dtype)),
)
