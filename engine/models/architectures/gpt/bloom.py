"""The BLOOM architecture (BigScience, "BLOOM: A 176B-Parameter Open-Access Multilingual Language Model", 2022)."""

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from engine.backends.base.backend import Products
from engine.backends.base.operands import Activation, Norm, NormKind
from engine.backends.base.token_layout import TokenLayout
from engine.models.architectures.gpt.joined_qkv import JoinedQkvDecoder
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.alibi import with_alibi
from engine.models.parts.decoder import Names
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.rotary import NO_ROTARY
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf

_CONTEXT = 2048  # tokens it was trained for, where a configuration says nothing
_OLD_NAMES = {"hidden_size": "n_embed", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
_FOLDER_NAMES = {
    "model.embed_tokens.": "word_embeddings.", "model.embed_norm.": "word_embeddings_layernorm.", "model.layers.": "h.",
    "model.ln_f.": "ln_f.",
}  # fmt: skip
_PREFIX = "transformer."


@dataclass(frozen=True)
class Bloom(JoinedQkvDecoder):
    """Scores that fall with distance, a LayerNorm of the embeddings, LayerNorms and biases, GELU without gates."""

    # Before the names in a folder; it says nothing about the model itself.
    prefix: str = dataclasses.field(default="", compare=False)

    output_norm_names: ClassVar[Names] = ("model.ln_f", "output_norm")
    attention_output_names: ClassVar[Names] = ("self_attention.dense", "attn_output")
    qkv_names: ClassVar[Names] = ("self_attention.query_key_value", "attn_qkv")
    up_names: ClassVar[Names] = ("mlp.dense_h_to_4h", "ffn_up")
    down_names: ClassVar[Names] = ("mlp.dense_4h_to_h", "ffn_down")
    folder_names: ClassVar[Mapping[str, str]] = _FOLDER_NAMES
    norm_kind = NormKind.LAYER
    has_norm_bias = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if config.flag("apply_residual_connection_post_layernorm"):
            raise config.error("apply_residual_connection_post_layernorm", "residuals behind norms are not served")
        renamed = {name: config.value(old) for name, old in _OLD_NAMES.items() if config.value(name) is None}
        config = config.with_values(renamed)
        values: dict[str, Any] = {
            "max_position_embeddings": config.integer("seq_length", least=2) or _CONTEXT,
            "intermediate_size": 4 * config.required_integer("hidden_size", least=1),
        }
        usual = folder_config.read_decoder(
            config.with_values(values), tensor_names, "bloom", rotary=NO_ROTARY, is_tied=True,
            epsilon_key="layer_norm_epsilon", default_epsilon=1e-5,
        )  # fmt: skip
        prefix = _PREFIX if any(name.startswith(_PREFIX) for name in tensor_names) else ""
        return cls(_with_biases(usual), prefix)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file, rotary=NO_ROTARY, epsilon_key="attention.layer_norm_epsilon")
        return cls(_with_biases(usual))

    def leaves(self) -> tuple[Leaf, ...]:
        names = ("model.embed_norm", "token_embd_norm")
        of_embedding = self.norm_leaves("embedding_norm", self.config.hidden_size, names, is_per_layer=False)
        return (*super().leaves(), *(leaf.renamed("safetensors", self.folder_name) for leaf in of_embedding))

    def folder_name(self, name: str) -> str:
        changed = super().folder_name(name)
        return name if changed == name else self.prefix + changed

    def embed(self, params: Params, tokens: jax.Array, layout: TokenLayout, products: Products) -> jax.Array:
        norm = self.norm(params, "embedding_norm")
        assert isinstance(norm, Norm)
        return products.norm(super().embed(params, tokens, layout, products), norm, jnp.int32(0), layout)


def _with_biases(usual: DecoderConfig) -> DecoderConfig:
    biased = dataclasses.replace(
        usual, activation=Activation.GELU_TANH, has_qkv_bias=True, has_attention_output_bias=True, has_mlp_bias=True
    )
    return with_alibi(biased)
