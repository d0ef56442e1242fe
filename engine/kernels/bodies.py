"""Which body computes what: native kernels where they can be had, XLA everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from engine.border.config import EngineConfig
from engine.kernels.native import library
from engine.kernels.native.arrays import empty
from engine.kernels.native.library import NativeUnavailable
from engine.kernels.native.sampler import NATIVE
from engine.models.llama import LlamaConfig
from engine.weights.packing import GROUP, TILE
from sampling.sampler import PORTABLE, SamplerBody

_HEAD_MULTIPLE = 16  # features; what the native attention kernel takes
_LARGEST_HEAD = 256


@dataclass(frozen=True)
class Backends:
    """The choice of one engine."""

    matmul: str  # native or xla
    attention: str  # native or xla
    detail: str  # which native kernels these are, or why there are none; for the log

    @classmethod
    def choose(cls, config: EngineConfig, model: LlamaConfig) -> Backends:
        """What the configuration asks for, and where it says auto, what is best here.

        Raises:
            ValueError: native kernels are asked for and cannot be had, or quantised weights without them.
        """
        try:
            detail, missing = f"native kernels for {library.load()}", None
        except NativeUnavailable as error:
            detail = missing = str(error)
        of_products = missing or _misfit_of_products(model)
        of_heads = missing or _misfit_of_heads(model)
        if missing is None:
            detail = "; ".join(filter(None, (detail, of_products, of_heads)))
        backends = cls(
            matmul=_resolve("matmul_backend", config.matmul_backend, of_products),
            attention=_resolve("attention_backend", config.attention_backend, of_heads),
            detail=detail,
        )
        if config.quantize is not None and backends.matmul != "native":
            raise ValueError(f"quantize is {config.quantize}, which needs native products, not xla; {detail}")
        return backends

    @property
    def sampler(self) -> SamplerBody:
        """What makes tokens of logits: as the products do."""
        return NATIVE if self.matmul == "native" else PORTABLE

    @property
    def empty(self) -> Callable[..., jax.Array]:
        """What makes an array whose content counts for nothing until it is written."""
        return empty if self.attention == "native" else jnp.zeros

    def kv_dtype(self, config: EngineConfig) -> str:
        """The type of the KV pages."""
        if config.kv_cache_dtype != "auto":
            return config.kv_cache_dtype
        if config.dtype != "auto":
            return config.dtype
        return "bfloat16" if self.attention == "native" else "float32"


def _resolve(name: str, wanted: str, obstacle: str | None) -> str:
    """native or xla, of what the configuration wants and what is in the way of native, if anything."""
    if wanted == "auto":
        return "native" if obstacle is None else "xla"
    if wanted == "native" and obstacle is not None:
        raise ValueError(f"{name} is native, but {obstacle}")
    return wanted


def _misfit_of_products(model: LlamaConfig) -> str | None:
    """Why native products cannot serve a model, or None where they can."""
    sizes = {"hidden": model.hidden_size, "queries": model.q_size, "intermediate": model.intermediate_size}
    if all(size % GROUP == 0 for size in sizes.values()) and model.kv_size % TILE == 0:
        return None
    listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
    return (
        f"native products take sizes in multiples of {GROUP}, of keys in multiples of {TILE}; "
        f"the model has {listed}, keys {model.kv_size}"
    )


def _misfit_of_heads(model: LlamaConfig) -> str | None:
    """Why native attention cannot serve a model, or None where it can."""
    if model.head_dim % _HEAD_MULTIPLE == 0 and model.head_dim <= _LARGEST_HEAD:
        return None
    return (
        f"native attention takes heads of up to {_LARGEST_HEAD} features in multiples of {_HEAD_MULTIPLE}; "
        f"the model's have {model.head_dim}"
    )
