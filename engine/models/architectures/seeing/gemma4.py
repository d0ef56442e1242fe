"""The Gemma 4 architecture (Gemma Team, "Gemma 4", 2026) with its pictures."""

import re
from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.architectures.gemma4.config import read_folder
from engine.models.architectures.gemma4.decoder import Gemma4
from engine.models.architectures.seeing.seeing_decoder import SeeingDecoder, text_prefix
from engine.models.encoders.gemma4_vision import Gemma4Vision
from engine.weights.formats.model_folder import JsonFile

_ALL_WAYS = "vision"  # what a configuration says where the tokens of a picture see each other in both directions


@dataclass(frozen=True)
class SeeingGemma4(SeeingDecoder, Gemma4):
    """Gemma 4, and where the tokens of its pictures see only what is before them, an encoder."""

    # The tensors that read sounds, and of pictures those that are not served, are left where they are.
    derived_tensors = re.compile(
        SeeingDecoder.derived_tensors.pattern + r"|(model\.)?(vision_tower|audio_tower|embed_vision|embed_audio)\..*"
    )

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of transformers' class for text, or those of the text in its class with pictures."""
        text = config.table("text_config")
        made = read_folder(config if text is None else text, tensor_names)
        vision = Gemma4Vision.read(config, tensor_names, made.hidden_size)
        if text is not None and vision is not None:
            if text.text("use_bidirectional_attention") == _ALL_WAYS:
                vision = None
            elif text.integer("pad_token_id", least=0) not in (None, 0):
                raise text.error("pad_token_id", "with pictures it must be 0")
        return cls(made, text_prefix(tensor_names), vision)
