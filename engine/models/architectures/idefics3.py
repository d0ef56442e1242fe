"""The Idefics 3 architecture (Laurençon et al., "Building and better understanding vision-language models", 2024).

SmolVLM (Marafioti et al., "SmolVLM: Redefining small and efficient multimodal models", 2025) has it too.
"""

import dataclasses
import re
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Self

from engine.models.architectures.llama import Llama
from engine.models.encoders.idefics3_vision import Idefics3Vision
from engine.models.encoders.vision_encoder import VisionEncoder
from engine.models.parts import folder_config
from engine.models.parts.model import Model
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf

# Where config.json says nothing; source: transformers' LlamaConfig and Idefics3Config.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
}  # fmt: skip
_USUAL_PREFIX = "model."
_PREFIX_WITH_PICTURES = "model.text_model."


@dataclass(frozen=True)
class Idefics3(Llama):
    """Llama, and an encoder of tiles."""

    vision: Idefics3Vision | None = None

    derived_tensors = re.compile(
        Model.derived_tensors.pattern
        + r"|model\.text_model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq|model\.(vision_model|connector)\..*"
    )

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of the text in transformers' class with pictures."""
        text = (config.table("text_config") or JsonFile(config.path, {})).with_defaults(_DEFAULTS)
        is_tied = folder_config.read_flag(config, "tie_word_embeddings", False)
        text = text.with_values({"tie_word_embeddings": is_tied})
        usual = folder_config.read_decoder(text, tensor_names, cls.model_type)
        return cls(usual, Idefics3Vision.read(config, tensor_names, usual.hidden_size))

    @property
    def encoder(self) -> VisionEncoder | None:
        return self.vision

    def without_encoder(self) -> Self:
        return dataclasses.replace(self, vision=None)

    def leaves(self) -> tuple[Leaf, ...]:
        """As `Decoder.leaves`, by the names that the folder has for them."""

        def renamed(name: str) -> str:
            is_of_model = name.startswith(_USUAL_PREFIX)
            return _PREFIX_WITH_PICTURES + name.removeprefix(_USUAL_PREFIX) if is_of_model else name

        of_vision = () if self.vision is None else self.vision.leaves()
        return tuple(leaf.renamed("safetensors", renamed) for leaf in super().leaves()) + of_vision
