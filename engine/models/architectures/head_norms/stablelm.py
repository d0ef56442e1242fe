"""The StableLM architecture (Bellagente et al., "Stable LM 2 1.6B Technical Report", 2024), also of the 12B model."""

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, Self

from engine.backends.base.operands import NormKind
from engine.models.architectures.head_norms.head_norms import GGUF_NORM, HeadNormsDecoder
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.tensors import AsMatrix, Transform

# Where config.json says nothing; source: transformers' StableLmConfig.
_DEFAULTS: dict[str, Any] = {"partial_rotary_factor": 0.25}
_OWN_MODEL_TYPE = "stablelm_epoch"
_MLP_NORM = "blk.0.ffn_norm.weight"  # a tensor of GGUF files whose blocks are one after the other


@dataclass(frozen=True)
class StableLm(HeadNormsDecoder):
    """Llama's layers with LayerNorms, and a rotation of a part of each head.

    The 12B model has both blocks side by side, and norms each head of queries and keys.
    """

    norm_kind = NormKind.LAYER
    has_norm_bias = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(
            config.with_defaults(_DEFAULTS), tensor_names, "stablelm", rotates_a_part=True,
            epsilon_key="layer_norm_eps", default_epsilon=1e-5,
        )  # fmt: skip
        has_bias = folder_config.read_flag(config, "use_qkv_bias", False)
        is_parallel = folder_config.read_flag(config, "use_parallel_residual", False)
        usual = dataclasses.replace(usual, has_qkv_bias=has_bias, is_parallel=is_parallel)
        return cls.made(usual, has_head_norms=folder_config.read_flag(config, "qk_layernorm", False))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """Files of models with blocks side by side have one norm in a layer; they may state the opposite."""
        epsilon_key = "attention.layer_norm_epsilon"
        usual = gguf_config.read_decoder(file, rotates_a_part=True, epsilon_key=epsilon_key)
        usual = dataclasses.replace(usual, is_parallel=_MLP_NORM not in file.names)
        return cls.made(usual, has_head_norms=GGUF_NORM in file.names)

    def norm_names(self) -> Mapping[str, Names]:
        names = super().norm_names()
        return {"attention_norm": names["attention_norm"]} if self.config.is_parallel else names

    def head_norm_of_folder(self, kind: str, head: int, num_heads: int) -> tuple[str, Transform]:
        """As `HeadNormsDecoder.head_norm_of_folder`; each head has a tensor of its own."""
        return f"self_attn.{kind}_layernorm.norms.{head}", AsMatrix


@dataclass(frozen=True)
class StableLmEpoch(StableLm):
    """StableLM by the makers' own class, whose configuration has other names."""

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if config.text("model_type") not in (None, _OWN_MODEL_TYPE):
            raise config.error("model_type", f'of this architecture it must be "{_OWN_MODEL_TYPE}"')
        renamed = {
            "model_type": "stablelm", "layer_norm_eps": config.value("norm_eps"),
            "partial_rotary_factor": config.value("rope_pct"),
        }  # fmt: skip
        return super().from_folder(config.with_values(renamed), tensor_names)
