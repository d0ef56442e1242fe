"""The Phi-3 architecture (Abdin et al., "Phi-3 technical report", 2024), also of Phi-3.5, Phi-4 and Phi-4-mini."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder, joined
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.longrope import LongRope, read_longrope, read_longrope_of_gguf
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Part


@dataclass(frozen=True)
class Phi3Config(DecoderConfig):
    """The sizes and constants of a decoder, and how the rotary embedding depends on the context."""

    longrope: LongRope | None = None


@dataclass(frozen=True)
class Phi3(Decoder):
    """Llama's layers with joined matrices; some models rotate a part of each head, and differently in long contexts."""

    config: Phi3Config

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        sizes = folder_config.read_sizes(config)
        rotary, longrope = read_longrope(config, sizes["head_dim"], sizes["context_length"])
        usual = folder_config.read_decoder(config, tensor_names, "phi3", rotary=rotary)
        windows = folder_config.read_windows(config, [True] * usual.num_layers)
        made = cls(Phi3Config(**vars(dataclasses.replace(usual, windows=windows)), longrope=longrope))
        return made.for_context(usual.context_length)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        sizes = gguf_config.read_sizes(file)
        rotary, longrope = read_longrope_of_gguf(file, sizes["head_dim"], sizes["context_length"])
        usual = gguf_config.read_decoder(file, rotary=rotary)
        return cls(Phi3Config(**vars(usual), longrope=longrope)).for_context(usual.context_length)

    def for_context(self, num_tokens: int) -> Self:
        """As `Model.for_context`: with the factors of long contexts where this one is longer than the original."""
        longrope = self.config.longrope
        if longrope is None:
            return self
        return dataclasses.replace(self, config=dataclasses.replace(self.config, rotary=(longrope.of(num_tokens),)))

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        """As `Decoder.qkv_parts`: rows of one matrix."""
        config = self.config
        return joined((config.q_size, config.kv_size, config.kv_size), inputs, ("self_attn.qkv_proj", "attn_qkv"))

    def gate_up_parts(self, inputs: int | None) -> tuple[Part, ...]:
        """As `Decoder.gate_up_parts`: rows of one matrix."""
        return joined((self.config.intermediate_size,) * 2, inputs, ("mlp.gate_up_proj", "ffn_up"))
