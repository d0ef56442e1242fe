"""What a model would take of the machine's memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelFootprint:
    """Known from the headers of a model's files, before anything is loaded."""

    architecture: str
    num_parameters: int
    context_length: int  # tokens that the model was trained for
    weight_bytes: int
    kv_bytes_per_token: int  # of the cache, for the keys and values of all layers
    quantization: str | None = None  # what its files say of their numbers, such as "Q4_K_M" or "awq int4 g128"


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """Bytes of the device, the container or the machine."""

    total: int
    available: int  # now
    usable: int  # now, by weights and caches: the rest is for intermediate results and for other processes
