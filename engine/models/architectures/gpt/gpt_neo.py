"""The GPT-Neo architecture (Black et al., "GPT-Neo", 2021), also of the models of TinyStories."""

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

# Where config.json says nothing; source: transformers' GPTNeoConfig.
_DEFAULTS: dict[str, Any] = {"activation_function": "gelu_new", "window_size": 256, "max_position_embeddings": 2048}
_SIZES = {"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads", "hidden_act": "activation_function"}
_ACTIVATIONS = ("gelu_new", "gelu_pytorch_tanh")
_KINDS = ("global", "local")
_PREFIX = "transformer."


@dataclass(frozen=True)
class GptNeo(Gpt2):
    """GPT-2's layers with windows in every second one; scores are not scaled, and folders have no joined matrices."""

    attention_output_names: ClassVar[Names] = ("self_attn.out_proj", "attn_output")
    folder_names: ClassVar[Mapping[str, str]] = Gpt2.folder_names
    model_type = "gpt_neo"
    has_transposed_matrices = False
    derived_tensors = re.compile(r"(transformer\.)?h\.\d+\.attn\.attention\.(bias|masked_bias)")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        config = config.with_values({name: config.value(old) for name, old in _SIZES.items()})
        if config.value("intermediate_size") is None:
            config = config.with_values({"intermediate_size": 4 * config.required_integer("hidden_size", least=1)})
        usual = folder_config.read_decoder(
            config, tensor_names, cls.model_type, rotary=NO_ROTARY, is_tied=True, hidden_act=_ACTIVATIONS,
            epsilon_key="layer_norm_epsilon", default_epsilon=1e-5,
        )  # fmt: skip
        window = config.required_integer("window_size", least=1)
        made = dataclasses.replace(
            usual, activation=Activation.GELU_TANH, attention_scale=1.0, has_attention_output_bias=True,
            has_mlp_bias=True, rotary=(), tables=(-1,) * usual.num_layers,
            windows=tuple(window if kind == "local" else 0 for kind in _read_kinds(config, usual.num_layers)),
        )  # fmt: skip
        return cls(made, _PREFIX if any(name.startswith(_PREFIX) for name in tensor_names) else "")

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        raise ModelError("no GGUF files of GPT-Neo are known")

    def folder_name(self, name: str) -> str:
        return super().folder_name(name).replace(".self_attn.", ".attn.attention.")

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        return Decoder.qkv_parts(self, inputs)


def _read_kinds(config: JsonFile, num_layers: int) -> list[str]:
    """Of each layer, whether it sees all; raises ModelError."""
    value, kinds = config.value("attention_layers"), list[str]()
    if isinstance(value, list):
        kinds = value
    else:  # kinds that follow each other, and how often they do
        entries = config.value("attention_types") or [[list(_KINDS), num_layers // 2]]
        for entry in entries if isinstance(entries, list) else [entries]:
            match entry:
                case [list(names), int(times)] if 0 <= times <= num_layers and len(names) * times <= num_layers:
                    kinds += names * times
                case _:
                    raise config.error("attention_types", "it must list pairs of a list of kinds and a number")
    if len(kinds) != num_layers or any(kind not in _KINDS for kind in kinds):
        key = "attention_layers" if isinstance(value, list) else "attention_types"
        raise config.error(key, f"it must make {num_layers} layers, each {_KINDS[0]!r} or {_KINDS[1]!r}")
    return kinds
