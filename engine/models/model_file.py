"""From the path of a model to the open model, whatever its format."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from engine.weights.formats.gguf_model import GGUFModel
from engine.weights.formats.safetensors_model import SafetensorsModel

ModelFile: TypeAlias = GGUFModel | SafetensorsModel


def open_model(path: Path) -> ModelFile:
    """A folder is one in Hugging Face's layout; anything else is a GGUF file.

    Raises:
        WeightsError: the model cannot be served, as the message says.
    """
    return SafetensorsModel(path) if path.is_dir() else GGUFModel(path)
