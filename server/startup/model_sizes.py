"""The memory that models take and that is free, before they are loaded."""

from __future__ import annotations

from server.model_sources.builtin_models import BUILTIN_MODELS
from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.model_store import resolve_model
from server.startup.settings import ServerSettings, SettingsError


def bytes_of(settings: ServerSettings) -> int:
    """About what the weights and pages of a model take, from the headers of its files; 0 where these tell nothing.

    It blocks, and imports JAX.
    """
    from engine.client import EngineClient

    try:
        path = resolve_model(settings.model)
        if path is None:  # it is not here yet
            return BUILTIN_MODELS[settings.model].memory_bytes if settings.model in BUILTIN_MODELS else 0
        config = settings.engine_config()
        found = EngineClient.footprint(path, config)
    except (ModelStoreError, SettingsError, ValueError, OSError, RuntimeError):
        return 0  # its load says why it cannot be read
    context_length = min(config.max_model_len or found.context_length, found.context_length)
    of_all_slots = config.max_num_seqs * (context_length * found.kv_bytes_per_token + found.state_bytes)
    if config.num_pages is not None:
        return found.weight_bytes + config.num_pages * found.page_size * found.kv_bytes_per_token
    if config.kv_cache_bytes is not None:
        return found.weight_bytes + min(config.kv_cache_bytes, of_all_slots)
    share = int(EngineClient.machine_memory().total * config.memory_utilization)
    return found.weight_bytes + min(share, of_all_slots)


def free_bytes() -> int:
    """What models may take at this moment; it blocks, and imports JAX."""
    from engine.client import EngineClient

    return EngineClient.machine_memory().usable
