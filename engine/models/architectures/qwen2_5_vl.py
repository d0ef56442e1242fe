"""The Qwen2.5-VL architecture (Qwen Team, "Qwen2.5-VL Technical Report", 2025): Qwen2.5, M-RoPE, and pictures."""

import dataclasses
import re
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from engine.models.architectures.qwen2 import Qwen2, read_windows
from engine.models.encoders.qwen2_5_vision import Qwen25Vision
from engine.models.encoders.vision_encoder import VisionEncoder
from engine.models.parts import folder_config, rotary
from engine.models.parts.model import Model
from engine.models.parts.rotary import Rotary
from engine.models.parts.rotary_config import kind_of, read_theta, rope_tables
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf

# Where config.json says nothing; source: transformers' Qwen2_5_VLTextConfig.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 152_064, "hidden_size": 8192, "intermediate_size": 29_568, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5,
}  # fmt: skip
_THETA = 1_000_000.0
_SECTIONS = [16, 24, 24]  # pairs of features that are rotated by time, row and column
_MODEL_TYPES = ("qwen2_5_vl", "qwen2_5_vl_text")
_USUAL_PREFIX = "model."
_PREFIX_WITH_PICTURES = "model.language_model."


@dataclass(frozen=True)
class Qwen25VL(Qwen2):
    """Qwen2.5 whose tokens of pictures are rotated by their rows and columns."""

    # Of a folder's tensors; it says nothing about the model itself.
    folder_prefix: str = field(default=_USUAL_PREFIX, compare=False)
    vision: Qwen25Vision | None = None

    derived_tensors = re.compile(Model.derived_tensors.pattern + r"|(model\.)?visual\..*")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of the text, which stand in a table since version 4.52 of transformers."""
        text = (config.table("text_config") or config).with_defaults(_DEFAULTS)
        is_tied = folder_config.read_flag(config, "tie_word_embeddings", False)
        model_type = text.text("model_type")
        if model_type in _MODEL_TYPES:
            model_type = None
        text = text.with_values({"tie_word_embeddings": is_tied, "model_type": model_type})
        head_dim = folder_config.read_sizes(text)["head_dim"]
        usual = folder_config.read_decoder(text, tensor_names, "qwen2_5_vl", rotary=_read_rotary(text, head_dim))
        usual = dataclasses.replace(usual, windows=read_windows(text, usual.num_layers), has_qkv_bias=True)
        has_prefix = f"{_PREFIX_WITH_PICTURES}embed_tokens.weight" in tensor_names
        prefix = _PREFIX_WITH_PICTURES if has_prefix else _USUAL_PREFIX
        return cls(usual, prefix, Qwen25Vision.read(config, tensor_names, usual.hidden_size))

    @property
    def encoder(self) -> VisionEncoder | None:
        return self.vision

    def without_encoder(self) -> Self:
        return dataclasses.replace(self, vision=None)

    def leaves(self) -> tuple[Leaf, ...]:
        """As `Decoder.leaves`, by the names that the folder has for them."""

        def renamed(name: str) -> str:
            is_of_model = name.startswith(_USUAL_PREFIX)
            return self.folder_prefix + name.removeprefix(_USUAL_PREFIX) if is_of_model else name

        of_vision = () if self.vision is None else self.vision.leaves()
        return tuple(leaf.renamed("safetensors", renamed) for leaf in super().leaves()) + of_vision


def _read_rotary(text: JsonFile, head_dim: int) -> Rotary:
    """M-RoPE without stretching; raises ModelError."""
    tables = list(rope_tables(text))
    sections: Any = _SECTIONS
    for table in tables:
        if kind_of(table) not in ("default", "mrope"):
            raise table.error("rope_type", "M-RoPE is served without scaling")
        sections = table.value("mrope_section") or sections
    are_sizes = isinstance(sections, list) and all(isinstance(each, int) and each >= 0 for each in sections)
    if not are_sizes or len(sections) != len(_SECTIONS) or sum(sections) != head_dim // 2:
        raise text.error(
            "rope_parameters", f"mrope_section must be {len(_SECTIONS)} sizes that add up to {head_dim // 2}"
        )
    plain = rotary.plain(head_dim, read_theta(text, tables, _THETA))
    return dataclasses.replace(plain, axes=tuple(np.repeat(np.arange(len(sections)), sections).tolist()))
