"""The GPT-J architecture (Wang and Komatsuzaki, "GPT-J-6B", 2021), and CodeGen's (Nijkamp et al., 2022)."""

import dataclasses
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from engine.backends.base.operands import Activation, NormKind
from engine.interface.errors import ModelError
from engine.models.architectures.gpt.folder_form import FOLDER_NAMES, with_usual_sizes
from engine.models.architectures.gpt.joined_qkv import JoinedQkvDecoder
from engine.models.parts import folder_config
from engine.models.parts.decoder import Decoder, Names
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Part
from engine.weights.tensors import Transform, in_turn, interleaved, paired_rows

# Where config.json says nothing; source: transformers' GPTJConfig.
_DEFAULTS: dict[str, Any] = {"rotary_dim": 64, "activation_function": "gelu_new", "n_positions": 2048}
_NUM_PARTS = 4  # in which CodeGen's joined matrix was trained


@dataclass(frozen=True)
class GptJ(JoinedQkvDecoder):
    """Blocks side by side behind one LayerNorm, GELU without gates, a rotation of adjacent features of a part."""

    norms: ClassVar[Mapping[str, Names]] = {"attention_norm": ("ln_1", "attn_norm")}
    output_norm_names: ClassVar[Names] = ("model.ln_f", "output_norm")
    attention_output_names: ClassVar[Names] = ("attn.out_proj", "attn_output")
    up_names: ClassVar[Names] = ("mlp.fc_in", "ffn_up")
    down_names: ClassVar[Names] = ("mlp.fc_out", "ffn_down")
    folder_names: ClassVar[Mapping[str, str]] = FOLDER_NAMES
    norm_kind = NormKind.LAYER
    has_norm_bias = True
    has_output_bias = True
    is_paired_in_folder = True
    model_type = "gptj"

    # Masks, which old releases of transformers stored.
    derived_tensors = re.compile(r"transformer\.h\.\d+\.attn\.(bias|causal_mask|masked_bias)")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        config = with_usual_sizes(config)
        head_dim = folder_config.read_sizes(config)["head_dim"]
        rotary_dim = config.required_integer("rotary_dim", least=2, most=head_dim)
        usual = folder_config.read_decoder(
            config.with_values({"partial_rotary_factor": rotary_dim / head_dim}), tensor_names, cls.model_type,
            rotates_a_part=True, hidden_act=("gelu_new", "gelu_pytorch_tanh"), epsilon_key="layer_norm_epsilon",
            default_epsilon=1e-5,
        )  # fmt: skip
        if not usual.has_output:
            raise config.error("tie_word_embeddings", "an output matrix that is the embedding is not served here")
        return cls(dataclasses.replace(usual, activation=Activation.GELU_TANH, has_mlp_bias=True, is_parallel=True))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        raise ModelError("no GGUF files of GPT-J are known")

    def folder_name(self, name: str) -> str:
        return super().folder_name(name).replace(".self_attn.", ".attn.")

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        return Decoder.qkv_parts(self, inputs)


@dataclass(frozen=True)
class CodeGen(GptJ):
    """GPT-J with queries, values and keys of a quarter of the heads after each other in one matrix."""

    qkv_names: ClassVar[Names] = ("attn.qkv_proj", "attn_qkv")
    model_type = "codegen"

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        made = super().from_folder(config, tensor_names)
        if made.config.num_heads % _NUM_PARTS:
            raise config.error("n_head", f"it must be a multiple of {_NUM_PARTS}")
        return made

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        return JoinedQkvDecoder.qkv_parts(self, inputs)

    def qkv_transform(self, index: int) -> Transform:
        config = self.config
        place = (0, 2, 1)[index]  # keys come last
        take = interleaved(_NUM_PARTS, (config.q_size // _NUM_PARTS,) * 3, (place,))
        paired = paired_rows(config.head_dim, config.rotary[0].rotary_dim)
        return take if place == 1 else in_turn(take, paired)
