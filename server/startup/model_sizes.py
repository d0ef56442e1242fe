"""The memory that models take and that there is, before they are loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from engine.interface.types import MachineMemory
from server.model_sources.builtin_models import BUILTIN_MODELS
from server.model_sources.builtin_store import find_builtin
from server.startup.settings import ServerSettings

if TYPE_CHECKING:  # it brings JAX, which takes a second to import
    from engine.client import EnginePlan


class ModelBytes(NamedTuple):
    """About what a model takes of the memory, with its cache."""

    usual: int = 0  # 0: not known
    least: int = 0  # with a cache for one long request; where memory is short, the cache is made smaller


def bytes_before_pull(settings: ServerSettings) -> ModelBytes:
    """What is known of a model that is not here yet; it blocks."""
    is_missing = settings.model in BUILTIN_MODELS and find_builtin(settings.model) is None
    known = BUILTIN_MODELS[settings.model].memory_bytes if is_missing else 0
    return ModelBytes(known, known)


def bytes_of(plan: EnginePlan) -> ModelBytes:
    """What an engine takes by the headers of its model's files. It blocks; raises ValueError."""
    config, found = plan.config, plan.footprint()
    if config.num_pages is not None:
        cache = config.num_pages * found.page_size * found.kv_bytes_per_token
        return ModelBytes(found.weight_bytes + cache, found.weight_bytes + cache)
    of_one = found.kv_bytes(plan.max_model_len) + found.state_bytes
    share = int(machine_memory().total * config.memory_utilization)
    cache = min(config.max_num_seqs * of_one, share if config.kv_cache_bytes is None else config.kv_cache_bytes)
    least = min(cache, of_one) if config.kv_cache_bytes is None else cache
    return ModelBytes(found.weight_bytes + cache, found.weight_bytes + least)


def machine_memory() -> MachineMemory:
    """The memory that models may take; it blocks, and imports JAX."""
    from engine.client import EngineClient

    return EngineClient.machine_memory()
