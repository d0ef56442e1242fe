"""The Gemma 3 architecture (Gemma Team, "Gemma 3 Technical Report", 2025)."""

import dataclasses
import re
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any, Self

from engine.models.architectures.gemma2 import Gemma2, are_local, gguf_scalar, of_gemma, read_folder
from engine.models.encoders.gemma3_vision import Gemma3Vision
from engine.models.encoders.vision_encoder import VisionEncoder
from engine.models.parts import folder_config, gguf_config, rotary
from engine.models.parts.decoder import QueryKeyNorm
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.model import Model
from engine.models.parts.rotary import Rotary
from engine.models.parts.rotary_config import read_rotaries_of_kinds
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf

# Where config.json says nothing, as those of models with pictures do; source: transformers' Gemma3TextConfig.
_DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256,
    "max_position_embeddings": 131_072, "sliding_window": 4096, "rope_theta": 1_000_000.0,
}  # fmt: skip
_LOCAL_THETA = 10_000.0
_PERIOD = 6  # the last of so many layers sees all
_NUM_LAYERS_27B = 62
_USUAL_PREFIX = "model."
# The prefixes of the names of a text model within a model with pictures, as published first and since transformers 5,
# each with the prefix of the output matrix.
_PREFIXES_WITH_PICTURES = {"language_model.model.": "language_model.", "model.language_model.": ""}


@dataclass(frozen=True)
class Gemma3(Gemma2):
    """Gemma 2 with norms of queries and keys for soft caps; most layers have a window and another rotation."""

    # Of a folder's tensors; it says nothing about the model itself.
    folder_prefix: str = field(default=_USUAL_PREFIX, compare=False)
    vision: Gemma3Vision | None = None

    query_key_norm = QueryKeyNorm.HEAD
    # What is left of the tensors that read pictures, such as SigLIP's head, is not needed.
    derived_tensors = re.compile(Model.derived_tensors.pattern + r"|(model\.)?(vision_tower|multi_modal_projector)\..*")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of transformers' class for text, or those of the text in its class with pictures."""
        text = (config.table("text_config") or config).with_defaults(_DEFAULTS)
        prefix = next(
            (prefix for prefix in _PREFIXES_WITH_PICTURES if f"{prefix}embed_tokens.weight" in tensor_names),
            _USUAL_PREFIX,
        )
        output_prefix = _PREFIXES_WITH_PICTURES.get(prefix, "")
        outputs = {name.removeprefix(output_prefix) for name in tensor_names if name.endswith(folder_config.OUTPUT)}
        usual = read_folder(text, outputs, "gemma3_text")
        if text.positive_number("attn_logit_softcapping") is not None:
            raise text.error("attn_logit_softcapping", "scores of this architecture are not capped")
        is_local = are_local(usual.num_layers, text.integer("sliding_window_pattern", least=1) or _PERIOD)
        vision = Gemma3Vision.read(config, tensor_names, usual.hidden_size)
        return cls(
            _with_windows(
                usual, folder_config.read_windows(text, is_local=is_local),
                read_rotaries_of_kinds(
                    text, usual.head_dim, usual.context_length,
                    local_theta=text.positive_number("rope_local_base_freq") or _LOCAL_THETA,
                ),
                text.positive_number("final_logit_softcapping"),
            ),
            prefix,
            vision,
        )  # fmt: skip

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        fields, usual = file.fields, gguf_config.read_decoder(file)
        window = gguf_config.read_window(file)
        period = fields.integer("attention.sliding_window_pattern") or _PERIOD
        local = rotary.plain(usual.head_dim, fields.positive_number("rope.freq_base_swa") or _LOCAL_THETA)
        return cls(
            _with_windows(
                of_gemma(usual, gguf_scalar(file, usual, _NUM_LAYERS_27B)),
                tuple(window if is_local else 0 for is_local in are_local(usual.num_layers, period)),
                (*usual.rotary, local),
                fields.positive_number("final_logit_softcapping"),
            )
        )

    @property
    def encoder(self) -> VisionEncoder | None:
        return self.vision

    def leaves(self) -> tuple[Leaf, ...]:
        """As `Decoder.leaves`, by the names that the folder has for them."""
        of_vision = () if self.vision is None else self.vision.leaves()
        leaves = super().leaves()
        if self.folder_prefix == _USUAL_PREFIX:
            return leaves + of_vision
        output_prefix = _PREFIXES_WITH_PICTURES[self.folder_prefix]

        def renamed(name: str) -> str:
            if name == folder_config.OUTPUT:
                return output_prefix + name
            return self.folder_prefix + name.removeprefix(_USUAL_PREFIX)

        return tuple(leaf.renamed("safetensors", renamed) for leaf in leaves) + of_vision


def _with_windows(
    usual: DecoderConfig, windows: tuple[int, ...], rotaries: tuple[Rotary, ...], softcap: float | None
) -> DecoderConfig:
    """Layers without a window rotate by the first table, those with one by the second."""
    return dataclasses.replace(
        usual,
        windows=windows,
        rotary=rotaries,
        tables=tuple(int(window > 0) for window in windows),
        logit_softcap=softcap or 0.0,
    )
