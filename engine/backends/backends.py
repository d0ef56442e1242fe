"""Chooses the backends of an engine, once at its start, from its configuration and its model's sizes."""

from collections.abc import Mapping

from engine.backends.base.backend import Backend, Backends, BackendUnavailable
from engine.backends.base.model_config import ModelConfig
from engine.backends.native.backend import BACKEND as NATIVE
from engine.backends.xla.backend import BACKEND as XLA
from engine.interface.config import BACKEND_NAMES, EngineConfig

BACKENDS: tuple[Backend, ...] = (NATIVE, XLA)  # in the order of BACKEND_NAMES

if tuple(backend.name for backend in BACKENDS) != BACKEND_NAMES:
    raise ImportError(
        f"the backends are {[backend.name for backend in BACKENDS]}, but BACKEND_NAMES is {BACKEND_NAMES}"
    )


def choose_backends(
    config: EngineConfig, model: ModelConfig, encoder_inputs: Mapping[str, int] | None = None
) -> Backends:
    """The configured backends, and for "auto" the first that supports the model; raises ValueError.

    Args:
        encoder_inputs: of the products of its encoder of pictures, by name; None: it has no such encoder.
    """
    details, of_products, of_attention = list[str](), dict[str, str | None](), dict[str, str | None]()
    for backend in BACKENDS:
        try:
            described, missing = backend.load(), None
        except BackendUnavailable as error:
            described = missing = str(error)
        of_products[backend.name] = (
            missing
            or backend.products_unsupported_reason(model)
            or backend.encoder_unsupported_reason(encoder_inputs or {})
        )
        of_attention[backend.name] = missing or backend.attention_unsupported_reason(model)
        details.append(described)
        if missing is None:
            details += filter(None, (of_products[backend.name], of_attention[backend.name]))
    backends = Backends(
        for_products=_resolve("matmul_backend", config.matmul_backend, of_products),
        for_attention=_resolve("attention_backend", config.attention_backend, of_attention),
        detail="; ".join(filter(None, details)),
        is_exact=config.dtype == "float32",
    )
    if config.quantize is not None and not backends.weights.can_quantise:
        able = " or ".join(backend.name for backend in BACKENDS if backend.weights.can_quantise)
        raise ValueError(
            f"quantize is {config.quantize}, which needs {able} products, not {backends.for_products.name}; "
            f"{backends.detail}"
        )
    return backends


def kv_dtype(config: EngineConfig, backends: Backends) -> str:
    if config.kv_cache_dtype != "auto":
        return config.kv_cache_dtype
    if config.dtype != "auto":
        return config.dtype
    fastest = backends.for_attention.kv_dtype()
    # The processors of several hosts may be fastest with different types, and the hosts' programs must be alike.
    return "bfloat16" if fastest == "int16" and config.num_hosts > 1 else fastest


def _resolve(name: str, wanted: str, obstacles: dict[str, str | None]) -> Backend:
    """The first backend without an obstacle, or the one that is wanted by its name."""
    for backend in BACKENDS:
        obstacle = obstacles[backend.name]
        if wanted == backend.name and obstacle is not None:
            raise ValueError(f"{name} is {wanted}, but {obstacle}")
        if obstacle is None and wanted in ("auto", backend.name):
            return backend
    raise ValueError(f"{name} is {wanted!r}; it must be auto, {' or '.join(backend.name for backend in BACKENDS)}")
