"""The settings of a folder's image processor, and the colours that the encoder of pictures gets by them."""

from __future__ import annotations

import math
from typing import Any

from engine.weights.formats.fields import Fields
from engine.weights.formats.model_folder import Folder, JsonFile

PROCESSOR_FILE = "preprocessor_config.json"
PROCESSORS_FILE = "processor_config.json"  # in which transformers 5 writes the image processor
# The keys of the mean and the deviation of colours, of which each has three; GGUF files have the same ones.
MEAN, DEVIATION = "image_mean", "image_std"
_NUM_COLOURS = 3
_MOST_COLOUR = 255
_MOST_NUMBER = 1e6
_NOT_NORMALIZED = {MEAN: [0.0] * _NUM_COLOURS, DEVIATION: [1.0] * _NUM_COLOURS}


def image_processor(folder: Folder) -> JsonFile | None:
    """The settings of a folder's image processor; None where it has none. Raises ModelError."""
    processor = folder.json(PROCESSOR_FILE)
    if processor is None:
        processors = folder.json(PROCESSORS_FILE)
        processor = None if processors is None else processors.table("image_processor")
    return processor


def stated_colours(processor: Fields) -> dict[str, Any]:
    """What an image processor says of colours, by their keys; empty where it says nothing.

    Raises ModelError where it does not make colours numbers between 0 and 1 first.
    """
    if processor.flag("do_rescale") is False:
        raise processor.error("do_rescale", "colours are taken as numbers between 0 and 1")
    scale = processor.number("rescale_factor")
    if scale is not None and not math.isclose(scale * _MOST_COLOUR, 1, rel_tol=1e-6):
        raise processor.error("rescale_factor", f"it must be 1/{_MOST_COLOUR}")
    stated = colours_of(processor)
    return dict(_NOT_NORMALIZED) if processor.flag("do_normalize") is False else stated


def colours_of(fields: Fields, prefix: str = "") -> dict[str, Any]:
    """The mean and the deviation that a file states behind a prefix, by their keys; raises ModelError."""
    stated = {}
    for key, least in ((MEAN, -_MOST_NUMBER), (DEVIATION, 1 / _MOST_NUMBER)):
        value = fields.value(prefix + key)
        if value is None:
            continue
        if (
            not isinstance(value, list)
            or len(value) != _NUM_COLOURS
            or not all(_is_from(least, each) for each in value)
        ):
            raise fields.error(prefix + key, f"it must be {_NUM_COLOURS} numbers from {least:g} to {_MOST_NUMBER:g}")
        stated[key] = [float(each) for each in value]
    return stated


def _is_from(least: float, value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= _MOST_NUMBER
