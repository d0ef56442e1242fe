"""The OpenELM architecture (Mehta et al., "OpenELM", 2024), whose layers grow."""

import dataclasses
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from engine.interface.errors import ModelError
from engine.models.architectures.llamas.deci import Deci, DeciConfig, DeciLayer
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names, QueryKeyNorm, in_layers
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.rotary_config import read_rotary_dim_of_gguf, read_rotary_of_gguf
from engine.weights.formats.fields import MAX_INTEGER
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf, LeafKind, Part, Split, Stored, with_folder_prefixes
from engine.weights.spread_heads import fewer_heads_of_inputs, fewer_heads_of_outputs
from engine.weights.tensors import rows

_EPSILON = 1e-6  # that of the makers' code, which no file of a folder states
_NAMES = {
    "hidden_size": "model_dim", "num_hidden_layers": "num_transformer_layers", "vocab_size": "vocab_size",
    "max_position_embeddings": "max_context_length", "rope_theta": "rope_freq_constant",
    "tie_word_embeddings": "share_input_output_layers",
}  # fmt: skip
# The only values that published models have.
_USUAL: dict[str, Any] = {
    "ffn_with_glu": True, "normalize_qk_projections": True, "activation_fn_name": "swish",
    "normalization_layer_name": "rms_norm",
}  # fmt: skip
_FOLDER_NAMES = {
    "model.embed_tokens.": "transformer.token_embeddings.", "model.layers.": "transformer.layers.",
    "model.norm.": "transformer.norm.",
}  # fmt: skip
_LEAST_KEPT = 0.9  # of a size that is rounded down


@dataclass(frozen=True)
class OpenElm(Deci):
    """Norms of each head of queries and keys; heads and feed-forward blocks of several sizes.

    All layers have as many heads in the pages as the one with the most: in the others the last ones are zeros.
    """

    is_paired_in_gguf = False
    query_key_norm = QueryKeyNorm.HEAD
    attention_output_names: ClassVar[Names] = ("attn.out_proj", "attn_output")
    query_key_norm_names: ClassVar[Mapping[str, Names]] = {
        "q": ("attn.q_norm", "attn_q_norm"),
        "k": ("attn.k_norm", "attn_k_norm"),
    }
    attention_norm_names: ClassVar[Names] = ("attn_norm", "attn_norm")
    mlp_norm_names: ClassVar[Names] = ("ffn_norm", "ffn_norm")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        for key, usual in _USUAL.items():
            if config.value(key) not in (None, usual):
                raise config.error(key, f"of this architecture it must be {usual!r}")
        num_layers = config.required_integer("num_transformer_layers", least=1, most=folder_config.MAX_NUM_LAYERS)
        heads, kv_heads = (_read_counts(config, key, num_layers) for key in ("num_query_heads", "num_kv_heads"))
        hidden = config.required_integer("model_dim", least=1)
        divisor = config.integer("ffn_dim_divisor", least=1) or 256
        sizes = [_divisible(each * hidden, divisor) for each in _read_multipliers(config, num_layers)]
        renamed = {name: config.value(old) for name, old in _NAMES.items()}
        usual_config = folder_config.read_decoder(
            config.with_values(
                {
                    **renamed, "num_attention_heads": max(heads), "num_key_value_heads": max(kv_heads),
                    "intermediate_size": max(sizes),
                }
            ),
            tensor_names, "openelm", is_tied=True, default_epsilon=_EPSILON,
        )  # fmt: skip
        return cls(_of_openelm(usual_config, heads, kv_heads, sizes))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        num_layers = file.fields.required_integer("block_count", least=1)
        heads, kv_heads, feed_sizes = (
            _read_list(file, key, num_layers)
            for key in ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
        )
        sizes = gguf_config.read_sizes_of(
            file, num_heads=max(heads), num_kv_heads=max(kv_heads), intermediate_size=max(feed_sizes)
        )
        if sizes["num_layers"] != num_layers:
            raise file.fields.error("nextn_predict_layers", "it is not served of this architecture")
        rotary = read_rotary_of_gguf(file, read_rotary_dim_of_gguf(file, sizes["head_dim"]), sizes["context_length"])
        return cls(_of_openelm(gguf_config.decoder_of(file, sizes, rotary), heads, kv_heads, feed_sizes))

    def leaves(self) -> tuple[Leaf, ...]:
        return with_folder_prefixes(super().leaves(), _FOLDER_NAMES)

    def attention_leaves(self) -> list[Leaf]:
        config, group = self.config, self.config.num_heads // self.config.num_kv_heads
        transform = fewer_heads_of_inputs(config.num_kv_heads, group * config.head_dim)
        leaves = []
        for leaf in super().attention_leaves():
            if leaf.name == "attention_output":
                stored = {
                    kind: dataclasses.replace(each, transform=transform) for kind, each in leaf.parts[0].stored.items()
                }
                leaf = dataclasses.replace(leaf, parts=(dataclasses.replace(leaf.parts[0], stored=stored),))
            leaves.append(leaf)
        return leaves

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        """Both formats have all queries, then all keys, then all values."""
        config = self.config
        widths = (config.num_heads // config.num_kv_heads * config.head_dim, config.head_dim, config.head_dim)
        return tuple(
            in_layers(
                (size,) if inputs is None else (size, inputs), ("attn.qkv_proj", "attn_qkv"),
                suffix="bias" if inputs is None else "weight", folder_transform=transform, gguf_transform=transform,
            )
            for size, transform in zip(
                (config.q_size, config.kv_size, config.kv_size),
                (fewer_heads_of_outputs(config.num_kv_heads, widths, part) for part in range(3)),
                strict=True,
            )
        )  # fmt: skip

    def feed_forward_leaves(self) -> list[Leaf]:
        """Those of each size of a block, whose gate and up are one tensor of a folder."""
        config, hidden = self.config, self.config.hidden_size
        leaves = []
        for size, layers in config.layers_of_size.items():
            up = tuple(
                dataclasses.replace(part, stored={**part.stored, "safetensors": Stored(_PROJ_1, take)})
                for part, take in zip(
                    (in_layers((size, hidden), ("", f"ffn_{kind}")) for kind in ("gate", "up")),
                    (rows(0, size, 2 * size), rows(size, 2 * size, 2 * size)),
                    strict=True,
                )
            )
            of_size = [
                *self.norm_leaves(f"mlp_norm_{size}", hidden, self.mlp_norm_names),
                Leaf(f"gate_up_{size}", LeafKind.GATED, up, Split.OUTPUTS),
                Leaf(f"down_{size}", LeafKind.MATRIX, (in_layers((hidden, size), ("ffn.proj_2", "ffn_down")),)),
            ]
            leaves += [dataclasses.replace(leaf, layers=layers) for leaf in of_size]
        return leaves


_PROJ_1 = "model.layers.{layer}.ffn.proj_1.weight"


def _read_counts(config: JsonFile, key: str, num_layers: int) -> list[int]:
    """Heads of each layer; raises ModelError."""
    value = config.value(key)
    if not isinstance(value, list) or len(value) != num_layers:
        raise config.error(key, f"it must list the heads of {num_layers} layers")
    if any(type(each) is not int or not 0 < each <= folder_config.MAX_NUM_HEADS for each in value):
        raise config.error(key, f"each must be an integer from 1 to {folder_config.MAX_NUM_HEADS}")
    return value


def _read_multipliers(config: JsonFile, num_layers: int) -> list[float]:
    """Of each layer, the inner size of its feed-forward block by the hidden one; raises ModelError."""
    key = "ffn_multipliers"
    value = config.value(key)
    if not isinstance(value, list) or len(value) != num_layers:
        raise config.error(key, f"it must list a number for each of {num_layers} layers")
    if any(type(each) not in (int, float) or not 0 < each <= 1024 for each in value):
        raise config.error(key, "each must be a number above 0, and at most 1024")
    return value


def _divisible(size: float, divisor: int) -> int:
    """The multiple of the divisor that is nearest to a size, or the next one where that is far below it."""
    nearest = max(divisor, int(size + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < _LEAST_KEPT * size else nearest


def _read_list(file: GGUFTensors, key: str, num_layers: int) -> list[int]:
    """A size of each layer; raises ModelError."""
    value = file.fields.value(key)
    if not isinstance(value, list) or len(value) != num_layers:
        raise file.fields.error(key, f"it must list a size for each of {num_layers} layers")
    if any(type(each) is not int or not 0 < each <= MAX_INTEGER for each in value):
        raise file.fields.error(key, "each must be an integer of at least 1")
    return value


def _of_openelm(
    usual: DecoderConfig, heads: Sequence[int], kv_heads: Sequence[int], sizes: Sequence[int]
) -> DeciConfig:
    """Raises ModelError if not as many heads share each head of keys in all layers."""
    group = usual.num_heads // usual.num_kv_heads
    if any(count != group * shared for count, shared in zip(heads, kv_heads, strict=True)):
        raise ModelError(f"in each layer {group} heads of queries must share each head of keys")
    layers = tuple(DeciLayer(count, False, size) for count, size in zip(kv_heads, sizes, strict=True))
    return DeciConfig(**vars(usual), layers=layers)
