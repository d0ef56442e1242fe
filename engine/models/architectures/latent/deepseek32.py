"""The architecture of DeepSeek-V3.2 (DeepSeek-AI, "DeepSeek-V3.2", 2025), in contexts that its index picks whole."""

import re
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Self

from engine.models.architectures.latent.deepseek2 import DeepseekV3
from engine.models.parts.model import Model
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

_NUM_PICKED = 2048  # tokens; of transformers' class, where a configuration leaves it out


@dataclass(frozen=True)
class Deepseek32(DeepseekV3):
    """DeepSeek-V3's layers, in which an index picks the tokens that a query sees.

    It picks all of them in a context of at most `index_topk` tokens. Such contexts are served, without its tensors.
    """

    model_type = "deepseek_v32"
    derived_tensors = re.compile(Model.derived_tensors.pattern + r"|model\.layers\.\d+\.self_attn\.indexer\..*")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        made = super().from_folder(config, tensor_names)
        return made._within(config.integer("index_topk", least=2) or _NUM_PICKED)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return super().from_gguf(file)._within(file.fields.required_integer("attention.indexer.top_k", least=2))

    def _within(self, num_picked: int) -> Self:
        """The model in contexts of so many tokens."""
        context_length = min(self.config.context_length, num_picked)
        return replace(self, config=replace(self.config, context_length=context_length))
