"""Which backends an engine computes with: chosen once at its start, from its configuration and its model's sizes."""

from __future__ import annotations

from engine.backends.base.backend import Backend, Backends, BodyUnavailable
from engine.backends.base.model_config import ModelConfig
from engine.backends.native.backend import BODY as NATIVE
from engine.backends.xla.backend import BODY as XLA
from engine.interface.config import BACKEND_NAMES, EngineConfig

BACKENDS: tuple[Backend, ...] = (NATIVE, XLA)  # in the order of BACKEND_NAMES

if tuple(body.name for body in BACKENDS) != BACKEND_NAMES:
    raise ImportError(f"the backends are {[body.name for body in BACKENDS]}, but BACKEND_NAMES is {BACKEND_NAMES}")


def choose_bodies(config: EngineConfig, model: ModelConfig) -> Backends:
    """What the configuration asks for, and where it says auto, what is best here.

    Raises:
        ValueError: a body is asked for and cannot be had, or quantised weights without one that has them.
    """
    details, of_products, of_attention = list[str](), dict[str, str | None](), dict[str, str | None]()
    for body in BACKENDS:
        try:
            described, missing = body.load(), None
        except BodyUnavailable as error:
            described = missing = str(error)
        of_products[body.name] = missing or body.misfit_of_products(model)
        of_attention[body.name] = missing or body.misfit_of_attention(model)
        details.append(described)
        if missing is None:
            details += filter(None, (of_products[body.name], of_attention[body.name]))
    backends = Backends(
        for_products=_resolve("matmul_backend", config.matmul_backend, of_products),
        for_attention=_resolve("attention_backend", config.attention_backend, of_attention),
        detail="; ".join(filter(None, details)),
    )
    if config.quantize is not None and not backends.weights.can_quantise:
        able = " or ".join(body.name for body in BACKENDS if body.weights.can_quantise)
        raise ValueError(
            f"quantize is {config.quantize}, which needs {able} products, not {backends.for_products.name}; "
            f"{backends.detail}"
        )
    return backends


def kv_dtype(config: EngineConfig, backends: Backends) -> str:
    """The type of the KV pages."""
    if config.kv_cache_dtype != "auto":
        return config.kv_cache_dtype
    return backends.for_attention.kv_dtype if config.dtype == "auto" else config.dtype


def _resolve(name: str, wanted: str, obstacles: dict[str, str | None]) -> Backend:
    """The first body without an obstacle, or the one that is wanted by its name."""
    for body in BACKENDS:
        obstacle = obstacles[body.name]
        if wanted == body.name and obstacle is not None:
            raise ValueError(f"{name} is {wanted}, but {obstacle}")
        if obstacle is None and wanted in ("auto", body.name):
            return body
    raise ValueError(f"{name} is {wanted!r}; it must be auto, {' or '.join(body.name for body in BACKENDS)}")
