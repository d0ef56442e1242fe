"""The LFM2-VL architecture (Liquid AI, "LFM2 Technical Report", 2025): LFM2, and pictures."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.architectures.hybrids.lfm2 import Lfm2
from engine.models.architectures.seeing.seeing_decoder import SeeingDecoder, text_names, text_prefix
from engine.models.encoders.lfm2_vision import Lfm2Vision
from engine.models.parts import folder_config
from engine.weights.formats.model_folder import JsonFile


@dataclass(frozen=True)
class Lfm2VL(SeeingDecoder, Lfm2):
    """LFM2's layers, and the encoder of SigLIP 2."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of the text in transformers' class with pictures."""
        text = config.table("text_config")
        if text is None:
            raise config.error("text_config", "it is missing")
        is_tied = folder_config.read_flag(config, "tie_word_embeddings", True)
        text = text.with_values({"tie_word_embeddings": is_tied, "tie_embedding": None})
        made = Lfm2.from_folder(text, text_names(tensor_names)).config
        return cls(made, text_prefix(tensor_names), Lfm2Vision.read(config, tensor_names, made.hidden_size))
