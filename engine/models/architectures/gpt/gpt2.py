"""The GPT-2 architecture (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019)."""

import dataclasses
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from engine.backends.base.backend import Products
from engine.backends.base.operands import Activation, NormKind
from engine.backends.base.token_layout import TokenLayout
from engine.models.architectures.gpt.folder_form import with_usual_sizes
from engine.models.architectures.gpt.joined_qkv import JoinedQkvDecoder
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names, single
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.rotary import NO_ROTARY
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Split
from engine.weights.tensors import ModelTensor, Transform, Transposed, rows

# Where config.json says nothing; source: transformers' GPT2Config.
_DEFAULTS: dict[str, Any] = {"activation_function": "gelu_new", "scale_attn_weights": True}
_FOLDER_NAMES = {
    "model.embed_tokens.": "wte.", "model.embed_positions.": "wpe.", "model.ln_f.": "ln_f.", "model.layers.": "h.",
}  # fmt: skip
_PREFIX = "transformer."


@dataclass(frozen=True)
class Gpt2(JoinedQkvDecoder):
    """Learned embeddings of positions, LayerNorms, biases, GELU without gates; folders have matrices transposed."""

    # Before the names in a folder; it says nothing about the model itself.
    prefix: str = field(default="", compare=False)

    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("ln_1", "attn_norm"),
        "mlp_norm": ("ln_2", "ffn_norm"),
    }
    output_norm_names: ClassVar[Names] = ("model.ln_f", "output_norm")
    attention_output_names: ClassVar[Names] = ("attn.c_proj", "attn_output")
    qkv_names: ClassVar[Names] = ("attn.c_attn", "attn_qkv")
    up_names: ClassVar[Names] = ("mlp.c_fc", "ffn_up")
    down_names: ClassVar[Names] = ("mlp.c_proj", "ffn_down")
    folder_names: ClassVar[Mapping[str, str]] = _FOLDER_NAMES
    norm_kind = NormKind.LAYER
    has_norm_bias = True
    model_type = "gpt2"
    has_transposed_matrices: ClassVar[bool] = True  # whether a folder has matrices as [inputs, outputs]
    first_position: ClassVar[int] = 0  # the row of the table of positions that a text's first token has

    # Masks, which old releases of transformers stored.
    derived_tensors = re.compile(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        for key, is_usual in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
            if config.flag(key) not in (None, is_usual):
                raise config.error(key, "scores that are scaled in another way are not served")
        if config.flag("add_cross_attention"):
            raise config.error("add_cross_attention", "cross-attention is not served")
        config = with_usual_sizes(config)
        usual = folder_config.read_decoder(
            config, tensor_names, cls.model_type, rotary=NO_ROTARY, is_tied=True,
            hidden_act=("gelu_new", "gelu_pytorch_tanh"), epsilon_key="layer_norm_epsilon", default_epsilon=1e-5,
        )  # fmt: skip
        prefix = _PREFIX if any(name.startswith(_PREFIX) for name in tensor_names) else ""
        return cls(_with_positions(usual), prefix)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        usual = gguf_config.read_decoder(file, rotary=NO_ROTARY, epsilon_key="attention.layer_norm_epsilon")
        return cls(_with_positions(usual))

    def leaves(self) -> tuple[Leaf, ...]:
        config = self.config
        num_positions = self.first_position + config.context_length
        positions = single((num_positions, config.hidden_size), ("model.embed_positions", "position_embd"))
        leaf = Leaf("position_embedding", LeafKind.EMBEDDING, (positions,), Split.OUTPUTS, is_per_layer=False)
        return (*super().leaves(), leaf.renamed("safetensors", self.folder_name))

    def folder_name(self, name: str) -> str:
        changed = super().folder_name(name)
        return name if changed == name else self.prefix + changed

    def attention_leaves(self) -> list[Leaf]:
        leaves = super().attention_leaves()
        return [_transposed(leaf, "attention_output") for leaf in leaves] if self.has_transposed_matrices else leaves

    def feed_forward_leaves(self) -> list[Leaf]:
        leaves = super().feed_forward_leaves()
        return [_transposed(leaf, "up", "down") for leaf in leaves] if self.has_transposed_matrices else leaves

    def qkv_transform(self, index: int) -> Transform:
        """A folder with transposed matrices, too, has all queries, then all keys, then all values."""
        if not self.has_transposed_matrices:
            return super().qkv_transform(index)
        size = self.config.q_size
        take = rows(index * size, (index + 1) * size, 3 * size)

        def transform(tensor: ModelTensor) -> ModelTensor:
            return take(Transposed(tensor) if len(tensor.shape) == 2 else tensor)

        return transform

    def embed(self, params: Params, tokens: jax.Array, layout: TokenLayout, products: Products) -> jax.Array:
        # No request is longer than the context; this keeps what padding has within the table.
        positions = jnp.clip(layout.positions, 0, self.config.context_length - 1)
        embedded = super().embed(params, tokens, layout, products)
        return embedded + products.embed(params["position_embedding"], positions + self.first_position, layout)


def _transposed(leaf: Leaf, *names: str) -> Leaf:
    """A leaf whose matrix a folder holds as [inputs, outputs], if it has one of the names."""
    if leaf.name not in names:
        return leaf

    def of_part(part: Part) -> Part:
        stored = dataclasses.replace(part.stored["safetensors"], transform=Transposed)
        return dataclasses.replace(part, stored={**part.stored, "safetensors": stored})

    return dataclasses.replace(leaf, parts=tuple(map(of_part, leaf.parts)))


def _with_positions(usual: DecoderConfig) -> DecoderConfig:
    return dataclasses.replace(
        usual, activation=Activation.GELU_TANH, has_qkv_bias=True, has_attention_output_bias=True, has_mlp_bias=True,
        rotary=(), tables=(-1,) * usual.num_layers,
    )  # fmt: skip
