"""The Jamba architecture (Lieber et al., "Jamba", 2024): Mamba in most layers, attention in some, and experts."""

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from engine.models.parts import folder_config, gguf_config, rotary
from engine.models.parts.decoder import Names, in_layers
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.hybrids.hybrid_config import Block, HybridConfig, refuse_biases, refuse_without_mamba
from engine.models.parts.hybrids.mamba_decoder import MambaDecoder
from engine.models.parts.hybrids.mamba_sizes import MambaSizes, read_sizes_by_channel, sizes_by_channel
from engine.models.parts.routing import Routing
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Part


@dataclass(frozen=True)
class Jamba(MambaDecoder):
    """Norms of time steps, B and C; dense blocks in some layers; no rotation."""

    block_norms: ClassVar[Mapping[Block, Names]] = {
        Block.MAMBA: ("input_layernorm", "attn_norm"),
        Block.ATTENTION: ("input_layernorm", "attn_norm"),
        Block.MLP: ("pre_ff_layernorm", "ffn_norm"),
        Block.EXPERTS: ("pre_ff_layernorm", "ffn_norm"),
    }
    output_norm_names: ClassVar[Names] = ("model.final_layernorm", "output_norm")
    router_names: ClassVar[Names] = ("feed_forward.router", "ffn_gate_inp")
    expert_names: ClassVar[Mapping[str, Names]] = {
        "gate": ("feed_forward.experts.{expert}.gate_proj", "ffn_gate_exps"),
        "up": ("feed_forward.experts.{expert}.up_proj", "ffn_up_exps"),
        "down": ("feed_forward.experts.{expert}.down_proj", "ffn_down_exps"),
    }

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults({"max_position_embeddings": 262144})
        table = rotary.plain(folder_config.read_sizes(config)["head_dim"], 10000.0)
        usual = folder_config.read_decoder(config, tensor_names, "jamba", rotary=table)
        attends = _period(config, "attn_layer", 8, 4, usual.num_layers)
        num_experts = config.integer("num_experts", least=1) or 16
        has_experts = _period(config, "expert_layer", 2, 1, usual.num_layers)
        if num_experts == 1:
            has_experts = (False,) * usual.num_layers
        value_size = (config.integer("mamba_expand", least=1, most=64) or 2) * usual.hidden_size
        time_rank = None
        if config.value("mamba_dt_rank") != "auto":
            time_rank = config.integer("mamba_dt_rank", least=1)
        mamba = sizes_by_channel(
            value_size,
            state_size=config.integer("mamba_d_state", least=1) or 16,
            kernel=config.integer("mamba_d_conv", least=1) or 4,
            time_rank=time_rank or math.ceil(usual.hidden_size / 16),
            has_convolution_bias=folder_config.read_flag(config, "mamba_conv_bias", True),
            has_projection_bias=folder_config.read_flag(config, "mamba_proj_bias", False),
        )
        num_picked = config.integer("num_experts_per_tok", least=1) or 2
        return cls(_hybrid(usual, mamba, attends, has_experts, num_experts, num_picked))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        refuse_biases(file)
        fields, num_layers = file.fields, file.fields.required_integer("block_count", least=1)
        attends = gguf_config.has_of_layers(file, "attention.head_count_kv", num_layers)
        table = rotary.plain(gguf_config.read_sizes(file)["head_dim"], 10000.0)
        first_attending = attends.index(True) if True in attends else 0
        usual = gguf_config.read_decoder(file, rotary=table, bias_layer=first_attending)
        first = attends.index(False) if False in attends else 0
        mamba = read_sizes_by_channel(file, first)
        has_experts = tuple(f"blk.{layer}.ffn_gate_inp.weight" in file.names for layer in range(num_layers))
        num_experts = fields.required_integer("expert_count", least=1) if any(has_experts) else 1
        num_picked = fields.required_integer("expert_used_count", least=1) if any(has_experts) else 1
        return cls(_hybrid(usual, mamba, attends, has_experts, num_experts, num_picked))

    def mlp_parts(self, hidden: int, inner: int) -> tuple[tuple[Part, ...], Part]:
        gate, up, down = (
            in_layers(shape, (f"feed_forward.{kind}_proj", f"ffn_{kind}"))
            for kind, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner)))
        )
        return (gate, up), down


def _period(config: JsonFile, key: str, period: int, offset: int, num_layers: int) -> tuple[bool, ...]:
    """Which layers are of a kind, one in each period; raises ModelError."""
    period = config.integer(f"{key}_period", least=1) or period
    stated = config.integer(f"{key}_offset", least=0)
    offset = offset if stated is None else stated
    if offset >= period:
        raise config.error(f"{key}_offset", f"it must be below {key}_period ({period})")
    return tuple(layer % period == offset for layer in range(num_layers))


def _hybrid(
    usual: DecoderConfig, mamba: MambaSizes, attends: tuple[bool, ...], has_experts: tuple[bool, ...],
    num_experts: int, num_picked: int,
) -> HybridConfig:  # fmt: skip
    """Raises ModelError if no layer has a state space, or a token cannot pick so many experts."""
    blocks = tuple(
        (Block.ATTENTION if attending else Block.MAMBA, Block.EXPERTS if mixed else Block.MLP)
        for attending, mixed in zip(attends, has_experts, strict=True)
    )
    refuse_without_mamba(blocks)
    if any(has_experts):
        Routing(num_experts=num_experts, num_picked=num_picked).check()
    num_attending = sum(attends)
    usual = replace(usual, tables=(-1,) * num_attending, windows=(0,) * num_attending)
    return HybridConfig(
        **vars(usual), mamba=mamba, blocks=blocks, num_experts=num_experts if any(has_experts) else 0,
        num_picked=num_picked if any(has_experts) else 0,
    )  # fmt: skip
