"""The memory that adapters take beside a model, computed from the headers of its files."""

from dataclasses import replace

import jax.numpy as jnp

from engine.adapters.adapter_stacks import padded_rank
from engine.adapters.targets import targets_of
from engine.backends.backends import choose_backends
from engine.interface.config import EngineConfig
from engine.interface.types import ModelFootprint
from engine.models.open_model import OpenModel
from engine.weights.layout import Precision


def with_adapter_bytes(alone: ModelFootprint, opened: OpenModel, config: EngineConfig) -> ModelFootprint:
    """The footprint of a model with the memory that is reserved for adapters, if there is any."""
    if config.adapters is None:
        return alone
    precision = Precision.of_engine(config)
    weights = choose_backends(config, opened.config, opened.model.encoder_inputs).weights
    sizes = [len(t.layers) * (len(t.parts) * t.num_inputs + t.ends[-1]) for t in targets_of(opened.model)]
    numbers = config.adapters.num_slots * padded_rank(config.adapters.max_rank) * sum(sizes)
    num_bytes = numbers * jnp.dtype(weights.pair_dtype(precision)).itemsize
    return replace(alone, weight_bytes=alone.weight_bytes + num_bytes)
