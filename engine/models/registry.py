"""The architectures that are served, a row for each name under which files know one."""

from __future__ import annotations

from typing import NamedTuple

from engine.border.errors import ModelError
from engine.models.architectures.gemma2 import Gemma2
from engine.models.architectures.gemma3 import Gemma3
from engine.models.architectures.llama import Llama
from engine.models.parts.model import Model
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import ModelFolder


class Architecture(NamedTuple):
    """One architecture by its names."""

    name: str  # in GGUF files, and in what the server tells of a model
    transformers_name: str  # the class in Hugging Face transformers
    model: type[Model]


ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("llama", "LlamaForCausalLM", Llama),
    Architecture("gemma2", "Gemma2ForCausalLM", Gemma2),
    Architecture("gemma3", "Gemma3ForCausalLM", Gemma3),
    Architecture("gemma3", "Gemma3ForConditionalGeneration", Gemma3),
)


def architecture_of_folder(folder: ModelFolder) -> Architecture:
    """
    Raises:
        ModelError: the architecture is not served.
    """
    names = folder.config.value("architectures")
    for architecture in ARCHITECTURES:
        if names == [architecture.transformers_name]:
            return architecture
    served = " or ".join(f'["{architecture.transformers_name}"]' for architecture in ARCHITECTURES)
    raise folder.config.error("architectures", f"this version serves {served}")


def architecture_of_gguf(file: GGUFTensors) -> Architecture:
    """
    Raises:
        ModelError: the architecture is not served.
    """
    for architecture in ARCHITECTURES:
        if file.architecture == architecture.name:
            return architecture
    served = " or ".join(repr(architecture.name) for architecture in ARCHITECTURES)
    raise ModelError(f"the architecture {file.architecture!r} is not served; this version serves {served}")
