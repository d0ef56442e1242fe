"""The OPT architecture (Zhang et al., "OPT: Open Pre-trained Transformer Language Models", 2022), also of Galactica."""

import dataclasses
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from engine.backends.base.operands import Activation
from engine.interface.errors import ModelError
from engine.models.architectures.gpt.gpt2 import Gpt2
from engine.models.parts import folder_config
from engine.models.parts.decoder import Decoder, Names
from engine.models.parts.rotary import NO_ROTARY
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Part

# Where config.json says nothing; source: transformers' OPTConfig.
_DEFAULTS: dict[str, Any] = {"activation_function": "relu", "max_position_embeddings": 2048}
_ACTIVATIONS = {"relu": Activation.RELU, "gelu": Activation.GELU_ERF}
_PREFIX = "model."
_EPSILON = 1e-5  # that of PyTorch, which no configuration states


@dataclass(frozen=True)
class Opt(Gpt2):
    """GPT-2's layers with ReLU; queries, keys and values are apart, and folders have matrices as [outputs, inputs]."""

    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("self_attn_layer_norm", "attn_norm"),
        "mlp_norm": ("final_layer_norm", "ffn_norm"),
    }
    output_norm_names: ClassVar[Names] = ("model.final_layer_norm", "output_norm")
    attention_output_names: ClassVar[Names] = ("self_attn.out_proj", "attn_output")
    up_names: ClassVar[Names] = ("fc1", "ffn_up")
    down_names: ClassVar[Names] = ("fc2", "ffn_down")
    folder_names: ClassVar[Mapping[str, str]] = {_PREFIX: "decoder."}
    model_type = "opt"
    has_transposed_matrices = False
    first_position = 2  # as fairseq has it, where one row before is for padding
    derived_tensors = re.compile(r"(?!)")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        hidden_size = config.required_integer("hidden_size", least=1)
        if config.flag("do_layer_norm_before") is False:
            raise config.error("do_layer_norm_before", "norms behind the blocks are not served for this architecture")
        if config.flag("_remove_final_layer_norm"):
            raise config.error("_remove_final_layer_norm", "models without the last norm are not served")
        if config.flag("layer_norm_elementwise_affine") is False:
            raise config.error("layer_norm_elementwise_affine", "norms without weights are not served here")
        if config.integer("word_embed_proj_dim", least=1) not in (None, hidden_size):
            raise config.error("word_embed_proj_dim", f"embeddings of another size than {hidden_size} are not served")
        renamed = {"intermediate_size": config.value("ffn_dim"), "hidden_act": config.value("activation_function")}
        usual = folder_config.read_decoder(
            config.with_values(renamed), tensor_names, cls.model_type, rotary=NO_ROTARY, is_tied=True,
            hidden_act=tuple(_ACTIVATIONS), default_epsilon=_EPSILON,
        )  # fmt: skip
        has_bias = folder_config.read_flag(config, "enable_bias", True)
        made = dataclasses.replace(
            usual, activation=_ACTIVATIONS[config.text("activation_function") or "relu"], has_qkv_bias=has_bias,
            has_attention_output_bias=has_bias, has_mlp_bias=has_bias, rotary=(), tables=(-1,) * usual.num_layers,
        )  # fmt: skip
        return cls(made, _PREFIX if any(name.startswith(_PREFIX) for name in tensor_names) else "")

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        raise ModelError("no GGUF files of OPT are known")

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        return Decoder.qkv_parts(self, inputs)
