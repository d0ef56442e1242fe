"""The memory that a model would take, computed from the headers of its files."""

import math

import jax

from cache.states import StateLayout
from cache.storage import LARGEST_SHARE_OF_AVAILABLE, PAGE_SIZE_BY_BACKEND, machine_memory
from engine.backends.backends import choose_backends, kv_dtype
from engine.interface.config import EngineConfig
from engine.interface.types import MachineMemory, ModelFootprint
from engine.models.open_model import OpenModel
from engine.weights.layout import Precision
from engine.weights.loader import bytes_in_memory


def footprint(opened: OpenModel, config: EngineConfig) -> ModelFootprint:
    """The memory that an engine of this configuration would take for the model; raises ModelError or ValueError."""
    sizes, tensors = opened.config, opened.tensors
    backends = choose_backends(config, sizes)
    page_size = config.page_size or PAGE_SIZE_BY_BACKEND.get(jax.default_backend(), 16)
    page = sizes.kv_layout(1, page_size, kv_dtype(config, backends))
    precision, encoder = Precision.of_engine(config), opened.model.encoder
    return ModelFootprint(
        architecture=opened.architecture.name,
        quantization=opened.quantization,
        num_parameters=sum(math.prod(shape) for shape in tensors.shapes().values()),
        context_length=sizes.context_length,
        weight_bytes=bytes_in_memory(tensors, backends.weights, precision),
        kv_bytes_per_token=page.bytes_per_page // page_size,
        state_bytes=StateLayout(sizes.states).bytes_per_entry,
        page_size=page_size,
        encoder_bytes=opened.encoder_bytes(backends.weights, precision),
        image_tokens=0 if encoder is None else encoder.buckets(sizes.context_length)[-1],
    )


def memory() -> MachineMemory:
    """The memory of the machine at this moment."""
    total, available = machine_memory()
    return MachineMemory(total, available, int(available * LARGEST_SHARE_OF_AVAILABLE))
