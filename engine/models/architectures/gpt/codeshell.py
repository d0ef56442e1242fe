"""The CodeShell architecture (Xie et al., "CodeShell Technical Report", 2024)."""

import dataclasses
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from engine.backends.base.operands import Activation, NormKind
from engine.models.architectures.gpt.folder_form import FOLDER_NAMES, with_usual_sizes
from engine.models.architectures.gpt.joined_qkv import JoinedQkvDecoder
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names
from engine.models.parts.decoder_config import DecoderConfig
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.tensors import Transform, rows

# Where config.json says nothing; source: the maker's configuration class.
_DEFAULTS: dict[str, Any] = {"activation_function": "gelu_pytorch_tanh", "position_embedding_type": "rope"}


@dataclass(frozen=True)
class CodeShell(JoinedQkvDecoder):
    """LayerNorms and biases, GELU without gates, a rotation, few heads of keys."""

    norms: ClassVar[Mapping[str, Names]] = {"attention_norm": ("ln_1", "attn_norm"), "mlp_norm": ("ln_2", "ffn_norm")}
    output_norm_names: ClassVar[Names] = ("model.ln_f", "output_norm")
    attention_output_names: ClassVar[Names] = ("attn.c_proj", "attn_output")
    qkv_names: ClassVar[Names] = ("attn.c_attn", "attn_qkv")
    up_names: ClassVar[Names] = ("mlp.c_fc", "ffn_up")
    down_names: ClassVar[Names] = ("mlp.c_proj", "ffn_down")
    folder_names: ClassVar[Mapping[str, str]] = FOLDER_NAMES
    norm_kind = NormKind.LAYER
    has_norm_bias = True
    derived_tensors = re.compile(r"transformer\.h\.\d+\.attn\.(bias|masked_bias|rotary_emb\.inv_freq)")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        if config.text("position_embedding_type") != "rope":
            raise config.error("position_embedding_type", 'it must be "rope"')
        if config.flag("scale_attn_weights") is False:
            raise config.error("scale_attn_weights", "scores that are scaled in another way are not served")
        config = with_usual_sizes(config)
        if folder_config.read_flag(config, "group_query_attention", True):
            num_groups = config.required_integer("num_query_groups", least=1)
            config = config.with_values({"num_key_value_heads": num_groups})
        usual = folder_config.read_decoder(
            config, tensor_names, "codeshell", hidden_act=("gelu_pytorch_tanh", "gelu_new"),
            epsilon_key="layer_norm_epsilon", default_epsilon=1e-5,
        )  # fmt: skip
        return cls(_of_codeshell(usual))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(_of_codeshell(gguf_config.read_decoder(file, epsilon_key="attention.layer_norm_epsilon")))

    def qkv_transform(self, index: int) -> Transform:
        """A folder, too, has all queries, then all keys, then all values."""
        config = self.config
        sizes = (config.q_size, config.kv_size, config.kv_size)
        start = sum(sizes[:index])
        return rows(start, start + sizes[index], sum(sizes))


def _of_codeshell(usual: DecoderConfig) -> DecoderConfig:
    return dataclasses.replace(
        usual, activation=Activation.GELU_TANH, has_qkv_bias=True, has_attention_output_bias=True, has_mlp_bias=True
    )
