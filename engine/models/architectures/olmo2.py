"""The OLMo 2 architecture (OLMo team, "2 OLMo 2 Furious", 2024)."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from engine.models.parts import gguf_config, rotary
from engine.models.parts.decoder import Decoder, Names, QueryKeyNorm
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.rotary import Rotary
from engine.weights.formats.gguf_tensors import GGUFTensors

PERIOD = 4  # of OLMo 3: the last of so many layers sees all, where a file does not say


@dataclass(frozen=True)
class Olmo2(Decoder):
    """Norms of what a block adds instead of before it, and of queries and keys over all heads at once."""

    norms: ClassVar[Mapping[str, Names]] = {
        "attention_output_norm": ("post_attention_layernorm", "post_attention_norm"),
        "down_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
    }
    model_type = "olmo2"
    query_key_norm = QueryKeyNorm.ALL

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """Files of OLMo 3 name this architecture too, and have windows."""
        usual = gguf_config.read_decoder(file)
        if not gguf_config.read_window(file):
            return cls(usual)
        windows = gguf_config.read_windows(file, usual.num_layers, period=PERIOD)
        theta = file.fields.positive_number("rope.freq_base") or 10000.0
        return cls(with_windows(dataclasses.replace(usual, windows=windows), rotary.plain(usual.head_dim, theta)))


def with_windows(usual: DecoderConfig, local: Rotary) -> DecoderConfig:
    """Layers with a window have a rotary embedding of their own."""
    tables = tuple(int(window > 0) for window in usual.windows)
    return dataclasses.replace(usual, rotary=(*usual.rotary, local), tables=tables)
