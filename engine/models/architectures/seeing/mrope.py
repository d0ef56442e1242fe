"""M-RoPE (Wang et al., "Qwen2-VL", 2024): pairs of features that are rotated by time, row or column."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.models.parts import rotary
from engine.models.parts.rotary import Rotary
from engine.models.parts.rotary_config import kind_of, read_theta, rope_tables
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

_NUM_AXES = 3


def read_mrope(
    text: JsonFile, head_dim: int, *, default_theta: float, default_sections: Sequence[int], is_interleaved: bool
) -> Rotary:
    """The rotary embedding without stretching; raises ModelError. The arguments are those of `read_axes`."""
    tables = list(rope_tables(text))
    for table in tables:
        if kind_of(table) not in ("default", "mrope"):
            raise table.error("rope_type", "M-RoPE is served without scaling")
    axes = read_axes(text, head_dim // 2, default_sections=default_sections, is_interleaved=is_interleaved)
    return dataclasses.replace(rotary.plain(head_dim, read_theta(text, tables, default_theta)), axes=axes)


def read_axes(
    text: JsonFile, num_pairs: int, *, default_sections: Sequence[int], is_interleaved: bool
) -> tuple[int, ...]:
    """The axis by which each pair of features is rotated; raises ModelError.

    Args:
        default_sections: pairs of each axis where the configuration does not say.
        is_interleaved: whether the axes take turns, as long as each has pairs left; else one follows the other.
    """
    stated: Any = None
    for table in rope_tables(text):
        stated = table.value("mrope_section") or stated
    sections: Any = list(default_sections) if stated is None else stated
    are_sizes = isinstance(sections, list) and all(isinstance(each, int) and each >= 0 for each in sections)
    # As in transformers, axes that take turns may have sections for more pairs by default.
    is_whole = are_sizes and (sum(sections) == num_pairs or (stated is None and is_interleaved))
    if not is_whole or len(sections) != _NUM_AXES:
        demand = f"mrope_section must be {_NUM_AXES} sizes that add up to {num_pairs}"
        raise text.error("rope_parameters", demand)
    return _of_pairs(sections, num_pairs, is_interleaved=is_interleaved)


def read_mrope_of_gguf(file: GGUFTensors, usual: Rotary, *, is_interleaved: bool) -> Rotary:
    """The rotary embedding of a GGUF file with its axes; raises ModelError.

    A file without sections is one of text alone, in which all axes have the same positions.
    """
    key = "rope.dimension_sections"
    sections, num_pairs = file.fields.value(key), len(usual.frequencies)
    if sections is None:
        return usual
    are_sizes = isinstance(sections, list) and all(isinstance(each, int) and each >= 0 for each in sections)
    if not are_sizes or len(sections) < _NUM_AXES or sum(sections[:_NUM_AXES]) != num_pairs or any(sections[3:]):
        raise file.fields.error(key, f"it must be {_NUM_AXES} sizes that add up to {num_pairs}")
    axes = _of_pairs(sections[:_NUM_AXES], num_pairs, is_interleaved=is_interleaved)
    return dataclasses.replace(usual, axes=axes)


def _of_pairs(sections: Sequence[int], num_pairs: int, *, is_interleaved: bool) -> tuple[int, ...]:
    axes = np.repeat(np.arange(_NUM_AXES), sections)
    if is_interleaved:
        axes = np.zeros(num_pairs, int)
        for axis in range(1, _NUM_AXES):
            axes[axis : _NUM_AXES * sections[axis] : _NUM_AXES] = axis
    return tuple(axes.tolist())
