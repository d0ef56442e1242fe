"""The gpt-oss architecture (OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", 2025)."""

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from engine.backends.base.operands import Clamp
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names
from engine.models.parts.experts import ExpertsDecoder, read_folder, read_gguf
from engine.models.parts.rotary_config import read_rotary_dim_of_gguf, read_rotary_of_gguf, rope_tables
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf, LeafKind, Part, Split, Stored
from engine.weights.quantised.mxfp4 import BLOCKS
from engine.weights.tensors import Transform, Transposed, in_turn, interleaved

# Where config.json says nothing; source: transformers' GptOssConfig.
_DEFAULTS: dict[str, Any] = {"attention_bias": True, "head_dim": 64, "rope_theta": 150_000.0}
_ROTARY: dict[str, Any] = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
_CLAMP = Clamp(alpha=1.702, limit=7.0)
_WINDOW = 128
_PERIOD = 2  # the last of so many layers sees all
_EXPERTS = "model.layers.{layer}.mlp.experts."


@dataclass(frozen=True)
class GptOss(ExpertsDecoder):
    """Attention with sinks, in every second layer with a window; clamped experts; biases of all products."""

    # Whether a folder holds the experts as MXFP4; it says nothing about the model itself.
    has_blocks: bool = field(default=False, compare=False)

    model_type = "gpt_oss"
    norms: ClassVar[Mapping[str, Names]] = {
        "attention_norm": ("input_layernorm", "attn_norm"),
        "mlp_norm": ("post_attention_layernorm", "post_attention_norm"),
    }
    router_names = ("mlp.router", "ffn_gate_inp")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        if not any(rope_tables(config)):
            config = config.with_values({"rope_parameters": _ROTARY})
        usual = folder_config.read_decoder(config, tensor_names, cls.model_type, default_epsilon=1e-5)
        is_local = [layer % _PERIOD != _PERIOD - 1 for layer in range(usual.num_layers)]
        windows = folder_config.read_windows(config, is_local, default=_WINDOW)
        experts = read_folder(config, dataclasses.replace(usual, windows=windows), normalises_shares=True)
        clamp = Clamp(
            alpha=config.positive_number("swiglu_alpha") or _CLAMP.alpha,
            limit=config.positive_number("swiglu_limit") or _CLAMP.limit,
        )
        has_blocks = any(name.endswith(BLOCKS) for name in tensor_names)
        return cls(dataclasses.replace(experts, clamp=clamp), has_blocks)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """As `Model.from_gguf`. The ramp of YaRN is not truncated, as in the makers' code."""
        usual = read_gguf(file, normalises_shares=True)
        rotary_dim = read_rotary_dim_of_gguf(file, usual.head_dim)
        rotary = read_rotary_of_gguf(file, rotary_dim, usual.context_length, is_truncated=False)
        windows = gguf_config.read_windows(file, usual.num_layers, period=_PERIOD)
        return cls(dataclasses.replace(usual, rotary=(rotary,), windows=windows, clamp=_CLAMP))

    def attention_leaves(self) -> list[Leaf]:
        stored = {
            "safetensors": Stored("model.layers.{layer}.self_attn.sinks"),
            "gguf": Stored("blk.{layer}.attn_sinks.weight"),
        }
        sinks = Part((self.config.num_heads,), stored)
        return [
            *super().attention_leaves(),
            Leaf("sinks", LeafKind.VECTOR, (sinks,), Split.OUTPUTS, is_exact=True),
        ]

    def feed_forward_leaves(self) -> list[Leaf]:
        config, count = self.config, self.config.num_experts
        inner, hidden = config.intermediate_size, config.hidden_size
        router, gate_up_proj = self.router_names, f"{_EXPERTS}gate_up_proj_bias"
        router_bias = Part(
            (count,),
            {
                "safetensors": Stored(f"model.layers.{{layer}}.{router[0]}.bias"),
                "gguf": Stored(f"blk.{{layer}}.{router[1]}.bias"),
            },
        )
        gate, up = (
            Part(
                (inner,),
                {
                    "safetensors": Stored(gate_up_proj, _every_second(inner, index), 2 * inner),
                    "gguf": Stored(f"blk.{{layer}}.ffn_{kind}_exps.bias"),
                },
            )
            for index, kind in enumerate(("gate", "up"))
        )
        down = Part(
            (hidden,),
            {"safetensors": Stored(f"{_EXPERTS}down_proj_bias"), "gguf": Stored("blk.{layer}.ffn_down_exps.bias")},
        )
        return [
            *super().feed_forward_leaves(),
            Leaf("router_bias", LeafKind.VECTOR, (router_bias,), is_exact=True),
            Leaf("gate_up_bias", LeafKind.VECTOR, (gate, up), Split.EXPERTS, num_experts=count),
            Leaf("down_bias", LeafKind.VECTOR, (down,), Split.EXPERTS, num_experts=count),
        ]

    def expert_parts(self, hidden: int, inner: int) -> tuple[Part, Part, Part]:
        """As `ExpertsDecoder.expert_parts`; in a folder, the outputs of gates and ups are by turns in one tensor."""
        ending, is_transposed = (BLOCKS, False) if self.has_blocks else ("", True)
        whole = (Transposed,) if is_transposed else ()
        stored = (
            *(
                Stored(
                    f"{_EXPERTS}gate_up_proj{ending}",
                    in_turn(*whole, _every_second(inner, index)),
                    2 * inner,
                    is_transposed,
                )
                for index in (0, 1)
            ),
            Stored(f"{_EXPERTS}down_proj{ending}", in_turn(*whole), is_transposed=is_transposed),
        )
        gate, up, down = (
            dataclasses.replace(part, stored={**part.stored, "safetensors": of_folder})
            for part, of_folder in zip(super().expert_parts(hidden, inner), stored, strict=True)
        )
        return gate, up, down


def _every_second(size: int, index: int) -> Transform:
    """Those outputs of 2 * size that are gates (0), or ups (1)."""
    return interleaved(size, (1, 1), (index,))
