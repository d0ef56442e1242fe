"""The GPT-NeoX architecture (Black et al., "GPT-NeoX-20B", 2022), also of Pythia and Dolly."""

import dataclasses
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from engine.backends.base.operands import Activation, NormKind
from engine.models.architectures.gpt.joined_qkv import JoinedQkvDecoder
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names
from engine.models.parts.decoder_config import DecoderConfig
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

# Where config.json says nothing; source: transformers' GPTNeoXConfig.
_DEFAULTS: dict[str, Any] = {"rotary_pct": 0.25, "rotary_emb_base": 10000.0, "hidden_act": "gelu"}
_ACTIVATIONS = {
    "gelu": Activation.GELU_ERF, "gelu_new": Activation.GELU_TANH, "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}  # fmt: skip
_FOLDER_NAMES = {
    "model.embed_tokens.": "gpt_neox.embed_in.", "lm_head.": "embed_out.", "model.": "gpt_neox.",
}  # fmt: skip


@dataclass(frozen=True)
class GptNeoX(JoinedQkvDecoder):
    """Blocks side by side, each behind a LayerNorm of its own, biases, and a rotation of a part of each head."""

    output_norm_names: ClassVar[Names] = ("model.final_layer_norm", "output_norm")
    attention_output_names: ClassVar[Names] = ("attention.dense", "attn_output")
    qkv_names: ClassVar[Names] = ("attention.query_key_value", "attn_qkv")
    up_names: ClassVar[Names] = ("mlp.dense_h_to_4h", "ffn_up")
    down_names: ClassVar[Names] = ("mlp.dense_4h_to_h", "ffn_down")
    folder_names: ClassVar[Mapping[str, str]] = _FOLDER_NAMES
    norm_kind = NormKind.LAYER
    has_norm_bias = True

    # Masks and tables, which old releases of transformers stored.
    derived_tensors = re.compile(r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        if config.table("rope_parameters") is None:
            names = {"partial_rotary_factor": "rotary_pct", "rope_theta": "rotary_emb_base"}
            config = config.with_defaults({name: config.value(old) for name, old in names.items()})
        usual = folder_config.read_decoder(
            config, tensor_names, "gpt_neox", rotates_a_part=True, hidden_act=tuple(_ACTIVATIONS),
            epsilon_key="layer_norm_eps", default_epsilon=1e-5, output="embed_out.weight",
        )  # fmt: skip
        has_bias = folder_config.read_flag(config, "attention_bias", True)
        made = dataclasses.replace(
            usual,
            activation=_ACTIVATIONS[config.text("hidden_act") or "gelu"],
            has_qkv_bias=has_bias,
            has_attention_output_bias=has_bias,
            has_mlp_bias=True,
            is_parallel=folder_config.read_flag(config, "use_parallel_residual", True),
        )
        return cls(made)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """Files do not say which form of GELU it is; that of Pythia, the exact one, is taken."""
        usual = gguf_config.read_decoder(file, rotates_a_part=True, epsilon_key="attention.layer_norm_epsilon")
        return cls(_of_gguf(file, usual))


def _of_gguf(file: GGUFTensors, usual: DecoderConfig) -> DecoderConfig:
    is_parallel = file.fields.flag("use_parallel_residual")
    return dataclasses.replace(
        usual,
        activation=Activation.GELU_ERF,
        has_qkv_bias="blk.0.attn_qkv.bias" in file.names,
        is_parallel=True if is_parallel is None else is_parallel,
    )
