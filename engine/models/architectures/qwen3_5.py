"""The Qwen3.5 architecture (Qwen Team, "Qwen3.5", 2026), text only: Qwen3-Next's layers, dense or with experts."""

import re
from collections.abc import Set
from dataclasses import dataclass, field
from typing import ClassVar, Self

from engine.models.parts import folder_config
from engine.models.parts.hybrids.delta_config import read_folder, read_gguf
from engine.models.parts.hybrids.delta_decoder import DeltaDecoder
from engine.models.parts.model import Model
from engine.models.parts.routed.joined_experts import joined_experts_of
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf

_USUAL_PREFIX = "model."
_PREFIX_WITH_PICTURES = "model.language_model."


@dataclass(frozen=True)
class Qwen35(DeltaDecoder):
    """Delta-nets whose products are stored one after the other."""

    # Of a folder's tensors; it says nothing about the model itself.
    folder_prefix: str = field(default=_USUAL_PREFIX, compare=False)

    model_type = "qwen3_5_text"
    has_experts: ClassVar[bool] = False
    # The tensors that read pictures, and the head that predicts several tokens at once, are left where they are.
    derived_tensors = re.compile(Model.derived_tensors.pattern + r"|mtp\..*|model\.visual\..*")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of transformers' class for text, or those of the text in its class with pictures."""
        text, prefix = config.table("text_config"), _PREFIX_WITH_PICTURES
        if text is None:
            text, prefix = config, _USUAL_PREFIX
        else:
            is_tied = folder_config.read_flag(config, "tie_word_embeddings", False)
            text = text.with_defaults({"tie_word_embeddings": is_tied})
        made = read_folder(text, tensor_names, cls.model_type, has_experts=cls.has_experts)
        return cls(made, joined_experts_of(tensor_names, "safetensors"), prefix)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """As `Model.from_gguf`. The converter of the ggml project puts heads of values that share keys far apart."""
        made = read_gguf(file, is_tiled=True, has_experts=cls.has_experts)
        return cls(made, joined_experts_of(file.names, "gguf"))

    def leaves(self) -> tuple[Leaf, ...]:
        """As `Decoder.leaves`, by the names that the folder has for them."""

        def renamed(name: str) -> str:
            is_of_model = name.startswith(_USUAL_PREFIX)
            return self.folder_prefix + name.removeprefix(_USUAL_PREFIX) if is_of_model else name

        return tuple(leaf.renamed("safetensors", renamed) for leaf in super().leaves())


@dataclass(frozen=True)
class Qwen35Moe(Qwen35):
    """The same with experts."""

    model_type = "qwen3_5_moe_text"
    has_experts = True
