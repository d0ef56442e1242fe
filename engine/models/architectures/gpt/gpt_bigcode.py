"""The GPTBigCode architecture (Li et al., "StarCoder", 2023), of StarCoder and SantaCoder."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.architectures.gpt.gpt2 import Gpt2
from engine.models.parts.folder_config import read_flag
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class GptBigCode(Gpt2):
    """GPT-2's layers with one head of keys and values; a folder has matrices as most do."""

    model_type = "gpt_bigcode"
    has_transposed_matrices = False

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        num_kv_heads = 1 if read_flag(config, "multi_query", True) else config.value("n_head")
        config = config.with_values({"num_key_value_heads": num_kv_heads})
        config = config.with_defaults({"activation_function": "gelu_pytorch_tanh"})
        return super().from_folder(config, tensor_names)
