"""What decoders with an encoder of pictures have in common: the names of their tensors, and the fields of the text."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from engine.models.encoders.vision_encoder import VisionEncoder
from engine.models.parts import folder_config
from engine.models.parts.decoder import Decoder
from engine.models.parts.model import Model
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf, with_folder_prefixes

USUAL_PREFIX = "model."
_PREFIXES_WITH_PICTURES = ("model.language_model.", "model.text_model.", "language_model.model.")
_WHOLE_TEXT_MODEL = "language_model."  # the prefix of the output matrix too, in folders of transformers 4


@dataclass(frozen=True)
class SeeingDecoder(Decoder):
    """A decoder with an encoder, in a folder of transformers' class with pictures."""

    # Of the text's tensors; it says nothing about the model itself.
    folder_prefix: str = field(default=USUAL_PREFIX, compare=False)
    vision: VisionEncoder | None = None

    # The tensors that read pictures are left where they are where only texts are read.
    derived_tensors = re.compile(
        Model.derived_tensors.pattern
        + r"|model\.text_model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
        + r"|(model\.)?visual\..*|model\.(vision_model|connector)\..*"
        + r"|(model\.)?(vision_tower|multi_modal_projector)\..*"
    )

    @property
    def encoder(self) -> VisionEncoder | None:
        return self.vision

    def leaves(self) -> tuple[Leaf, ...]:
        """As `Decoder.leaves`, by the names that the folder has for them."""
        of_vision = () if self.vision is None else self.vision.leaves()
        prefixes = {USUAL_PREFIX: self.folder_prefix, folder_config.OUTPUT: _output_name(self.folder_prefix)}
        return with_folder_prefixes(super().leaves(), prefixes) + of_vision


def text_prefix(tensor_names: Set[str]) -> str:
    """The prefix of the names of the text's tensors in a folder."""
    return next(
        (prefix for prefix in _PREFIXES_WITH_PICTURES if f"{prefix}embed_tokens.weight" in tensor_names), USUAL_PREFIX
    )


def text_names(tensor_names: Set[str]) -> Set[str]:
    """The names of a folder's tensors, in which the output matrix has its usual name."""
    output = _output_name(text_prefix(tensor_names))
    return {folder_config.OUTPUT if name == output else name for name in tensor_names}


def refuse_other_type(config: JsonFile, model_type: str) -> None:
    """Raises ModelError where a `config.json` states another type, by which pictures would be read in another way."""
    if config.text("model_type") not in (None, model_type):
        raise config.error("model_type", f'of this architecture it must be "{model_type}"')


def _output_name(prefix: str) -> str:
    return (_WHOLE_TEXT_MODEL if prefix.startswith(_WHOLE_TEXT_MODEL) else "") + folder_config.OUTPUT


def text_of(config: JsonFile, model_types: Sequence[str]) -> JsonFile:
    """The fields of the text in a `config.json`; raises ModelError where its type is none of these."""
    text = config.table("text_config") or config
    if text.text("model_type") not in (None, *model_types):
        raise text.error("model_type", f'of this architecture it must be "{model_types[-1]}"')
    is_tied = folder_config.read_flag(config, "tie_word_embeddings", False)
    return text.with_values({"tie_word_embeddings": is_tied, "model_type": None})
