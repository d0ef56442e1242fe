"""The Nemotron architecture (Parmar et al., "Nemotron-4 15B Technical Report", 2024), also of Minitron."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Any, Self

from engine.backends.base.operands import NormKind
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.plain_mlp import PlainMlpDecoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.tensors import OneMore, Transform

# Where config.json says nothing; source: transformers' NemotronConfig.
_DEFAULTS: dict[str, Any] = {"partial_rotary_factor": 0.5}


@dataclass(frozen=True)
class Nemotron(PlainMlpDecoder):
    """LayerNorms whose files hold the differences from 1, squared ReLU, and a rotation of a part of each head."""

    norm_kind = NormKind.LAYER
    has_norm_bias = True
    squares_relu = True

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = folder_config.read_decoder(
            config.with_defaults(_DEFAULTS), tensor_names, "nemotron", rotates_a_part=True, hidden_act="relu2",
            epsilon_key="norm_eps", default_epsilon=1e-5,
        )  # fmt: skip
        return cls(usual)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        epsilon_key = "attention.layer_norm_epsilon"
        return cls(gguf_config.read_decoder(file, rotates_a_part=True, epsilon_key=epsilon_key))

    def norm_transform_of_folder(self) -> Transform | None:
        return OneMore
