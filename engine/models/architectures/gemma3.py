"""The architecture Gemma 3, of which text is served (Gemma Team, "Gemma 3 Technical Report", 2025).

It differs from Gemma 2 in norms of queries and keys in the place of soft caps, in a rotary embedding of its own for
local layers, and in how many layers are local.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from engine.border.errors import ModelError
from engine.models.architectures.gemma2 import (
    GGUF_OUTPUT,
    GLOBAL,
    LOCAL,
    Gemma2,
    GemmaConfig,
    Rotation,
    alternating,
    gguf_scale,
    read_folder,
    refuse_unserved,
)
from engine.models.parts import gguf_config
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

# What stands before the names of the text model's tensors: in a folder of text alone, in one with pictures as it was
# first published, and in one that transformers has stored since its version 5.
_PREFIXES = ("model.", "language_model.model.", "model.language_model.")


@dataclass(frozen=True)
class Gemma3(Gemma2):
    """Gemma 2's layers, five of six of which see a window of the context alone; pictures are not served."""

    # The tensors of the part that reads pictures are left where they are.
    derived_tensors: ClassVar[re.Pattern[str]] = re.compile(
        Gemma2.derived_tensors.pattern + r"|(model\.)?(vision_tower|multi_modal_projector)\..*"
    )
    # Source: transformers' Gemma3TextConfig; configurations with pictures state little beside these.
    defaults: ClassVar[dict[str, Any]] = {
        "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256,
        "max_position_embeddings": 131_072, "sliding_window": 4096, "tie_word_embeddings": True,
    }  # fmt: skip
    period: ClassVar[int] = 6
    num_layers_27b: ClassVar[int] = 62
    global_theta: ClassVar[float] = 1_000_000.0

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Reads the fields of transformers' class for text, or of the text in its class with pictures."""
        text = (config.table("text_config") or config).with_defaults(cls.defaults)
        refuse_unserved(config)
        refuse_unserved(text)
        if text.positive_number("attn_logit_softcapping") is not None:
            raise text.error("attn_logit_softcapping", "scores of this architecture are not capped")
        prefix = next((name for name in _PREFIXES if f"{name}embed_tokens.weight" in tensor_names), _PREFIXES[0])
        return cls(
            GemmaConfig(
                **read_folder(text, cls.period),
                global_rotation=_folder_rotation(text, GLOBAL, "rope_theta", cls.global_theta),
                local_rotation=_folder_rotation(text, LOCAL, "rope_local_base_freq", Rotation.theta),
                norms_heads=True,
                logit_softcap=text.positive_number("final_logit_softcapping") or 0.0,
                has_output=not text.flag("tie_word_embeddings")
                or f"{prefix.removesuffix('model.')}lm_head.weight" in tensor_names,
                folder_prefix=prefix,
            )
        )

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """Reads the fields of the architecture "gemma3"."""
        sizes, fields = gguf_config.read_sizes(file), file.fields
        kind = fields.value("rope.scaling.type")
        if kind not in (None, "none", "linear"):
            raise ModelError(f"rotary scaling of type {kind!r} is not served")
        factor = fields.positive_number("rope.scaling.factor") if kind == "linear" else None
        window = fields.integer("attention.sliding_window")
        period = fields.integer("attention.sliding_window_pattern") or cls.period
        return cls(
            GemmaConfig(
                **sizes,
                rms_norm_eps=gguf_config.read_epsilon(file, "attention.layer_norm_rms_epsilon"),
                scale=gguf_scale(file, sizes, cls.num_layers_27b),
                is_local=alternating(sizes["num_layers"], period if window else 1),
                window=window or sizes["context_length"],
                global_rotation=Rotation(fields.positive_number("rope.freq_base") or cls.global_theta, factor or 1.0),
                local_rotation=Rotation(fields.positive_number("rope.freq_base_swa") or Rotation.theta),
                norms_heads=True,
                logit_softcap=fields.positive_number("final_logit_softcapping") or 0.0,
                has_output=GGUF_OUTPUT in file.names,
            )
        )


def _folder_rotation(config: JsonFile, layers: str, old_key: str, theta: float) -> Rotation:
    """The rotation of local or of global layers.

    Since version 5 of transformers there is a table for both in `rope_parameters`. Before, `rope_scaling` was that of
    global layers.
    """
    tables = config.table("rope_parameters")
    table = tables.table(layers) if tables is not None else config.table("rope_scaling") if layers == GLOBAL else None
    theta = config.positive_number(old_key) or theta
    if table is None:
        return Rotation(theta)
    theta = table.positive_number("rope_theta") or theta
    match table.text("rope_type") or table.text("type"):
        case None | "default":
            return Rotation(theta)
        case "linear":
            return Rotation(theta, table.required_positive_number("factor"))
        case _:
            raise table.error("rope_type", 'this version serves "default" and "linear"')
