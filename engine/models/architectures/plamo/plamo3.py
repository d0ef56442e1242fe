"""The architecture of PLaMo 3 (Preferred Networks and NICT, 2025)."""

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from engine.models.architectures.plamo.offset_norms import with_offset, without_suffix
from engine.models.parts import folder_config, gguf_config, rotary
from engine.models.parts.decoder import Decoder, Names, QueryKeyNorm, joined
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.rotary import Rotary
from engine.models.parts.rotary_config import read_rotary_of_gguf
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf, Part, with_folder_prefixes

# Where config.json says nothing; source: PFN's configuration.
_DEFAULTS: dict[str, Any] = {
    "head_dim": 128, "window_size": 2048, "sliding_window_pattern": 8, "rope_theta": 1_000_000.0,
    "rope_local_theta": 10_000.0, "tie_word_embeddings": True, "max_position_embeddings": 2048,
}  # fmt: skip
_PERIOD = 8  # the last of so many layers sees all, where a GGUF file does not say
_LOCAL_THETA = 10_000.0


@dataclass(frozen=True)
class Plamo3(Decoder):
    """Norms before and behind each block, and of each head; windows, whose layers have a rotation of their own."""

    takes_adapters = False  # until norms behind the products are tried
    query_key_norm = QueryKeyNorm.HEAD
    query_key_norm_names: ClassVar[Mapping[str, Names]] = {
        "q": ("mixer.q_norm", "attn_q_norm"),
        "k": ("mixer.k_norm", "attn_k_norm"),
    }
    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("pre_mixer_norm", "attn_norm"),
        "attention_output_norm": ("post_mixer_norm", "post_attention_norm"),
        "mlp_norm": ("pre_mlp_norm", "ffn_norm"),
        "down_norm": ("post_mlp_norm", "post_ffw_norm"),
    }
    attention_output_names: ClassVar[Names] = ("mixer.o_proj", "attn_output")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if config.flag("scale_embedding"):
            raise config.error("scale_embedding", "scaled embeddings are not served for this architecture")
        config = config.with_defaults(_DEFAULTS)
        head_dim = folder_config.read_sizes(config)["head_dim"]
        theta = config.required_positive_number("rope_theta")
        local = rotary.plain(head_dim, config.required_positive_number("rope_local_theta"))
        factor, full = config.positive_number("rope_scaling_factor"), rotary.plain(head_dim, theta)
        if factor is not None and factor != 1:
            if theta <= 1:
                raise config.error("rope_theta", "for YaRN it must be above 1")
            original = config.required_integer("initial_context_length", least=2)
            full = rotary.yarn(head_dim, theta, factor=factor, original_context=original, is_truncated=False)
        usual = folder_config.read_decoder(config, tensor_names, "plamo3", rotary=full)
        window = config.integer("sliding_window", least=1) or config.required_integer("window_size", least=1)
        # Configurations of before rotations were scaled count the tokens before a query's own.
        window += factor is None
        period = config.required_integer("sliding_window_pattern", least=1)
        windows = tuple(window if (layer + 1) % period else 0 for layer in range(usual.num_layers))
        return cls(_with_windows(usual, windows, local))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        sizes = gguf_config.read_sizes(file)
        full = read_rotary_of_gguf(file, sizes["head_dim"], sizes["context_length"], is_truncated=False)
        usual = gguf_config.read_decoder(file, rotary=full)
        windows = gguf_config.read_windows(file, usual.num_layers, period=_PERIOD)
        local = rotary.plain(usual.head_dim, file.fields.positive_number("rope.freq_base_swa") or _LOCAL_THETA)
        return cls(_with_windows(usual, windows, local))

    def leaves(self) -> tuple[Leaf, ...]:
        """As `Decoder.leaves`, by the names that folders have for layers."""
        return with_folder_prefixes(super().leaves(), {"model.layers.": "model.layers.layers."})

    def norm_leaves(self, leaf: str, size: int, names: Names, *, is_per_layer: bool = True) -> list[Leaf]:
        leaves = [with_offset(each) for each in super().norm_leaves(leaf, size, names, is_per_layer=is_per_layer)]
        return [without_suffix(each) if names[1].startswith("post_") else each for each in leaves]

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        """As `Decoder.qkv_parts`: rows of one matrix."""
        config = self.config
        return joined((config.q_size, config.kv_size, config.kv_size), inputs, ("mixer.qkv_proj", "attn_qkv"))

    def gate_up_parts(self, inputs: int | None) -> tuple[Part, ...]:
        """As `Decoder.gate_up_parts`: rows of one matrix."""
        return joined((self.config.intermediate_size,) * 2, inputs, ("mlp.gate_up_proj", "ffn_up"))


def _with_windows(usual: DecoderConfig, windows: tuple[int, ...], local: Rotary) -> DecoderConfig:
    tables = tuple(int(window > 0) for window in windows)
    return dataclasses.replace(usual, rotary=(*usual.rotary, local), windows=windows, tables=tables)
