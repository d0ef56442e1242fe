"""The OLMo 2 architecture (OLMo team, "2 OLMo 2 Furious", 2024)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from engine.models.parts.decoder import Decoder, Names, QueryKeyNorm


@dataclass(frozen=True)
class Olmo2(Decoder):
    """Norms of what a block adds instead of before it, and of queries and keys over all heads at once."""

    norms: ClassVar[Mapping[str, Names]] = {
        "attention_output_norm": ("post_attention_layernorm", "post_attention_norm"),
        "down_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
    }
    model_type = "olmo2"
    query_key_norm = QueryKeyNorm.ALL
