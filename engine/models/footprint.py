"""The memory that a model would take, computed from the headers of its files."""

import math
from dataclasses import replace

import jax

from cache.page_groups import group_layers, most_pages
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
    backends = choose_backends(config, sizes, opened.model.encoder_inputs)
    page_size = config.page_size or PAGE_SIZE_BY_BACKEND.get(jax.default_backend(), 16)
    page = sizes.kv_layout(1, page_size, kv_dtype(config, backends))
    max_model_len = min(config.max_model_len or sizes.context_length, sizes.context_length)
    windows = () if opened.model.is_encoder else sizes.page_windows
    groups = group_layers(windows, max_model_len - config.max_step_tokens)
    bytes_per_token, window_bytes, window_tokens = page.bytes_per_page // page_size, 0, 0
    if groups is not None:
        of_group = replace(page, num_layers=groups.num_layers).bytes_per_page // page_size
        bytes_per_token = of_group * groups.num_groups
        window_bytes = of_group * sum(window > 0 for window in groups.windows)
        window_tokens = page_size * most_pages(max(groups.windows), page_size, config.max_step_tokens)
    precision, encoder = Precision.of_engine(config), opened.model.encoder
    return ModelFootprint(
        architecture=opened.architecture.name,
        quantization=opened.quantization,
        num_parameters=sum(math.prod(shape) for shape in tensors.shapes().values()),
        context_length=sizes.context_length,
        weight_bytes=bytes_in_memory(tensors, backends.weights, precision),
        kv_bytes_per_token=bytes_per_token,
        window_bytes_per_token=window_bytes,
        window_tokens=window_tokens,
        state_bytes=StateLayout(sizes.states).bytes_per_entry,
        page_size=page_size,
        encoder_bytes=opened.encoder_bytes(backends.weights, precision),
        image_tokens=0 if encoder is None else encoder.buckets(sizes.context_length)[-1],
    )


def memory() -> MachineMemory:
    """The memory of the machine at this moment."""
    total, available = machine_memory()
    return MachineMemory(total, available, int(available * LARGEST_SHARE_OF_AVAILABLE))
