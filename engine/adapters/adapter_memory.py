"""The memory that adapters take beside a model, computed from the headers of its files."""

from dataclasses import replace

import jax.numpy as jnp

from engine.adapters.adapter_stacks import padded_rank, pair_dtypes
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
    targets, rank = targets_of(opened.model), padded_rank(config.adapters.max_rank)
    dtypes, num_bytes = pair_dtypes(targets, weights, precision, opened.tensors), 0
    for target in targets:
        num_inputs, num_outputs, num_parts = target.num_inputs, target.ends[-1], len(target.parts)
        of_layer = rank * (num_parts * num_inputs + num_outputs) * jnp.dtype(dtypes[target.name]).itemsize
        if dtypes[target.name] == "uint8":
            of_layer += 4 * (num_parts * rank + num_outputs)  # a scale for each column and each output
        num_bytes += config.adapters.num_slots * len(target.layers) * of_layer
    return replace(alone, weight_bytes=alone.weight_bytes + num_bytes)
