"""The architectures that are served, a row for each name under which files know one."""

from __future__ import annotations

from typing import NamedTuple

from engine.border.errors import ModelError
from engine.models.architectures.granite import Granite
from engine.models.architectures.llama import Llama
from engine.models.architectures.mistral import Ministral, Ministral3, Mistral
from engine.models.architectures.olmo2 import Olmo2
from engine.models.architectures.phi3 import Phi3
from engine.models.architectures.qwen2 import Qwen2
from engine.models.architectures.qwen3 import Qwen3
from engine.models.architectures.smollm3 import SmolLM3
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
    Architecture("mistral", "MistralForCausalLM", Mistral),
    Architecture("ministral", "MinistralForCausalLM", Ministral),
    Architecture("mistral3", "Ministral3ForCausalLM", Ministral3),
    Architecture("qwen2", "Qwen2ForCausalLM", Qwen2),
    Architecture("qwen3", "Qwen3ForCausalLM", Qwen3),
    Architecture("smollm3", "SmolLM3ForCausalLM", SmolLM3),
    Architecture("granite", "GraniteForCausalLM", Granite),
    Architecture("olmo2", "Olmo2ForCausalLM", Olmo2),
    Architecture("phi3", "Phi3ForCausalLM", Phi3),
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
    served = ", ".join(f'["{architecture.transformers_name}"]' for architecture in ARCHITECTURES)
    raise folder.config.error("architectures", f"this version serves {served}")


def architecture_of_gguf(file: GGUFTensors) -> Architecture:
    """
    Raises:
        ModelError: the architecture is not served.
    """
    for architecture in ARCHITECTURES:
        if file.architecture == architecture.name:
            return architecture
    served = ", ".join(repr(architecture.name) for architecture in ARCHITECTURES)
    raise ModelError(f"the architecture {file.architecture!r} is not served; this version serves {served}")
