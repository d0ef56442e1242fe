"""Agreement of all hosts on the code, settings and model, so that they compute the same programs."""

import hashlib
from importlib.metadata import version
from pathlib import Path

import jax

from engine.interface.config import EngineConfig
from engine.interface.errors import ModelError
from engine.interface.regular_file import open_regular
from engine.interface.setting import settings_of
from engine.models.open_model import OpenModel
from engine.step.program_cache import digest_of_sources
from engine.weights.formats.gguf_shards import shard_paths

_FOLDER_SUFFIX = ".safetensors"
_NUM_SAMPLES = 64  # of each file
_SAMPLE_BYTES = 4096

# Only the leader has a scheduler and a queue, and the number of pages is agreed upon later. All other settings count.
_OF_THE_LEADER = frozenset(
    {
        "coordinator", "coordinator_key", "coordinator_key_file",
        "host_index", "target_gap", "num_pages", "memory_utilization", "kv_cache_bytes",
        "enable_prefix_caching", "prefix_cache_dir", "prefix_cache_bytes", "prefix_cache_listen",
        "prefix_cache_peers", "prefix_cache_key", "overlap", "seed",
        "max_num_queued_requests", "max_num_queued_tokens", "request_timeout", "queue_timeout", "stall_timeout",
        "kv_events", "kv_events_topic", "kv_events_format",
    }
)  # fmt: skip


def facts_of(config: EngineConfig, opened: OpenModel) -> dict[str, str]:
    """The facts that must agree and are known before a host reads the weights, by names for messages."""
    facts = {
        "the version of Eagre": version("eagre"),
        "Eagre's code": digest_of_sources(),
        "the version of jax": jax.__version__,
        "the version of jaxlib": version("jaxlib"),
    }
    for name in settings_of(EngineConfig):
        if name not in _OF_THE_LEADER:
            facts[name] = str(getattr(config, name))
    limits = config.adapters
    facts["the room for adapters (max_loras and max_lora_rank)"] = (
        "none" if limits is None else f"{limits.num_slots} of rank {limits.max_rank}"
    )
    facts["the model"] = f"{opened.architecture.name}, {digest_of_model(opened)}"
    return facts


def digest_of_model(opened: OpenModel) -> str:
    """A digest of the configuration, the headers of all tensors, and samples of the files; raises ModelError."""
    seen = hashlib.sha256(repr((opened.model, opened.quantization)).encode())
    for leaf in opened.tensors.leaves:
        for layer in opened.tensors.of(leaf):
            seen.update(repr([(tensor.name, tensor.shape, tensor.num_bytes) for tensor in layer]).encode())
    path = opened.path
    try:
        for file in sorted(path.glob(f"*{_FOLDER_SUFFIX}")) if path.is_dir() else shard_paths(path):
            seen.update(_samples_of(file))
    except OSError as error:
        raise ModelError(f"{path}: {error}") from error
    return seen.hexdigest()[:16]


def _samples_of(path: Path) -> bytes:
    """Digest of a file's length and of evenly spaced pieces of it, so that other weights of the same shape differ."""
    size = path.stat().st_size
    seen = hashlib.sha256(str(size).encode())
    with open_regular(path) as file:
        for index in range(_NUM_SAMPLES):
            file.seek(size * index // _NUM_SAMPLES)
            seen.update(file.read(_SAMPLE_BYTES))
    return seen.digest()


def facts_of_devices() -> dict[str, str]:
    """The facts that must agree and are known once a host's devices are open."""
    device = jax.local_devices()[0]
    return {"the platform": device.platform, "the kind of its devices": device.device_kind}
