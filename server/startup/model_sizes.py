"""The memory that models take and that is free, before they are loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from server.model_sources.builtin_models import BUILTIN_MODELS
from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.model_store import resolve_model
from server.startup.adapter_settings import limits_of
from server.startup.settings import ServerSettings, SettingsError


class ModelBytes(NamedTuple):
    """About what a model takes of the memory, with its cache."""

    usual: int = 0  # 0: not known
    least: int = 0  # with a cache for one long request; where memory is short, the cache is made smaller


def bytes_of(settings: ServerSettings) -> ModelBytes:
    """Reads the headers of the model's files. It blocks, and imports JAX."""
    from engine.client import EngineClient

    try:
        path = resolve_model(settings.model)
        if path is None:  # it is not here yet
            known = BUILTIN_MODELS[settings.model].memory_bytes if settings.model in BUILTIN_MODELS else 0
            return ModelBytes(known, known)
        config = settings.engine_config()
        if settings.takes_adapters:
            config = replace(config, adapters=limits_of(settings))
        found = EngineClient.footprint(path, config)
    except (ModelStoreError, SettingsError, ValueError, OSError, RuntimeError):
        return ModelBytes()  # its load says why it cannot be read
    if config.num_pages is not None:
        cache = config.num_pages * found.page_size * found.kv_bytes_per_token
        return ModelBytes(found.weight_bytes + cache, found.weight_bytes + cache)
    context_length = min(config.max_model_len or found.context_length, found.context_length)
    of_one = found.kv_bytes(context_length) + found.state_bytes
    share = int(EngineClient.machine_memory().total * config.memory_utilization)
    cache = min(config.max_num_seqs * of_one, share if config.kv_cache_bytes is None else config.kv_cache_bytes)
    least = min(cache, of_one) if config.kv_cache_bytes is None else cache
    return ModelBytes(found.weight_bytes + cache, found.weight_bytes + least)


def free_bytes() -> int:
    """What models may take at this moment; it blocks, and imports JAX."""
    from engine.client import EngineClient

    return EngineClient.machine_memory().usable
