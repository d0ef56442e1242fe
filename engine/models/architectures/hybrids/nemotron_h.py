"""The Nemotron-H architecture (NVIDIA, "Nemotron-H", 2025), also of Nemotron 3: Mamba-2, attention, MLPs, experts."""

import math
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from engine.models.parts import folder_config, gguf_config, rotary
from engine.models.parts.decoder import Names, in_layers
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.experts import ExpertsConfig
from engine.models.parts.hybrids.hybrid_config import (
    Block,
    HybridConfig,
    read_kinds,
    refuse_biases,
    refuse_without_mamba,
)
from engine.models.parts.hybrids.hybrid_decoder import HybridDecoder
from engine.models.parts.hybrids.mamba_sizes import MambaSizes, read_sizes, read_sizes_of_gguf
from engine.models.parts.model import Model
from engine.models.parts.routed import config as routed_config
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf, Part, with_folder_prefixes

_MAMBA, _ATTENTION, _MLP, _EXPERTS = (Block.MAMBA,), (Block.ATTENTION,), (Block.MLP,), (Block.EXPERTS,)
_KINDS = {
    "linear_attention": _MAMBA, "mamba": _MAMBA, "full_attention": _ATTENTION, "attention": _ATTENTION, "mlp": _MLP,
    "moe": _EXPERTS,
}  # fmt: skip
# Of `hybrid_override_pattern`, in files of the maker.
_LETTERS = {"M": _MAMBA, "*": _ATTENTION, "-": _MLP, "E": _EXPERTS}
# Where config.json says nothing; source: transformers' NemotronHConfig.
_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 4096,
}  # fmt: skip
_LEAST_STEP = 0.001  # of time; where a file does not say, as in GGUF files, that of all published models
_PREFIXES = ("model.", "backbone.")  # of a folder's tensors


@dataclass(frozen=True)
class NemotronH(HybridDecoder):
    """Squared ReLU without gates, and no rotation; experts in place of MLPs where a model has some."""

    # Of a folder's tensors; it says nothing about the model itself.
    folder_prefix: str = field(default=_PREFIXES[0], compare=False)

    block_norms: ClassVar[Mapping[Block, Names]] = dict.fromkeys(
        (Block.MAMBA, Block.ATTENTION, Block.MLP, Block.EXPERTS), ("norm", "attn_norm")
    )
    mamba_name = "mixer"
    attention_output_names: ClassVar[Names] = ("mixer.o_proj", "attn_output")
    router_names: ClassVar[Names] = ("mixer.gate", "ffn_gate_inp")
    choice_bias_names: ClassVar[Names] = ("mixer.gate.e_score_correction_bias", "exp_probs_b")
    expert_names: ClassVar[Mapping[str, Names]] = {
        "up": ("mixer.experts.{expert}.up_proj", "ffn_up_exps"),
        "down": ("mixer.experts.{expert}.down_proj", "ffn_down_exps"),
    }
    shared_names: ClassVar[Mapping[str, Names]] = {
        "up": ("mixer.shared_experts.up_proj", "ffn_up_shexp"),
        "down": ("mixer.shared_experts.down_proj", "ffn_down_shexp"),
    }
    squares_relu = True
    # The head that predicts several tokens at once is left where it is.
    derived_tensors = re.compile(Model.derived_tensors.pattern + r"|mtp\..*")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        for key in ("attention_bias", "mlp_bias"):
            if folder_config.read_flag(config, key, False):
                raise config.error(key, "biases are not served")
        for key, act in (("mlp_hidden_act", "relu2"), ("mamba_hidden_act", "silu")):
            if config.text(key) not in (None, act):
                raise config.error(key, f'of this architecture it must be "{act}"')
        blocks = _read_blocks(config)
        fields = config.with_defaults(_DEFAULTS).with_values({"num_hidden_layers": len(blocks)})
        head_dim = fields.integer("attention_head_dim", least=2, most=rotary.MAX_HEAD_DIM)
        head_dim = head_dim or fields.required_integer("head_dim", least=2, most=rotary.MAX_HEAD_DIM)
        fields, table = fields.with_values({"head_dim": head_dim}), rotary.plain(head_dim, 10000.0)
        usual = folder_config.read_decoder(
            fields, tensor_names, "nemotron_h", rotary=table, epsilon_key="layer_norm_epsilon", default_epsilon=1e-5
        )
        prefix = next((each for each in _PREFIXES if any(name.startswith(each) for name in tensor_names)), _PREFIXES[0])
        latent_size = 0
        if _EXPERTS in blocks:
            latent_size = config.integer("moe_latent_size", least=1) or 0
            usual = _with_experts(config, usual)
        return cls(_hybrid(usual, _read_mamba(config), blocks, latent_size), folder_prefix=prefix)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        refuse_biases(file)
        num_layers = file.fields.required_integer("block_count", least=1)
        attends = gguf_config.has_of_layers(file, "attention.head_count_kv", num_layers)
        feeds = gguf_config.has_of_layers(file, "feed_forward_length", num_layers)
        blocks = tuple(
            _ATTENTION
            if attending
            else _MAMBA
            if not feeding
            else _EXPERTS
            if f"blk.{layer}.ffn_gate_inp.weight" in file.names
            else _MLP
            for layer, (attending, feeding) in enumerate(zip(attends, feeds, strict=True))
        )
        sizes = gguf_config.read_sizes(file)
        table = rotary.plain(sizes["head_dim"], 10000.0)
        first_attending = attends.index(True) if True in attends else 0
        usual = gguf_config.read_decoder(file, rotary=table, bias_layer=first_attending)
        mamba = read_sizes_of_gguf(file, blocks.index(_MAMBA) if _MAMBA in blocks else 0)
        latent_size = 0
        if _EXPERTS in blocks:
            latent_size = gguf_config.read_count(file, "moe_latent_size")
            usual = routed_config.read_gguf(file, usual, normalises_shares=True, first=blocks.index(_EXPERTS))
        return cls(_hybrid(usual, replace(mamba, time_limits=(_LEAST_STEP, math.inf)), blocks, latent_size))

    def leaves(self) -> tuple[Leaf, ...]:
        """As `Decoder.leaves`, by the names that the folder has for them."""
        prefix = self.folder_prefix
        names = {
            "model.layers.{layer}.self_attn.": f"{prefix}layers.{{layer}}.mixer.",
            "model.layers.": f"{prefix}layers.",
            "model.embed_tokens.": f"{prefix}embeddings.",
            "model.norm.": f"{prefix}norm_f.",
        }
        return with_folder_prefixes(super().leaves(), names)

    def mlp_parts(self, hidden: int, inner: int) -> tuple[tuple[Part, ...], Part]:
        up = in_layers((inner, hidden), ("mixer.up_proj", "ffn_up"))
        return (up,), in_layers((hidden, inner), ("mixer.down_proj", "ffn_down"))


def _read_blocks(config: JsonFile) -> tuple[tuple[Block, ...], ...]:
    for key in ("layers_block_type", "layer_types"):
        if config.value(key) is not None:
            return read_kinds(config, key, _KINDS)
    return read_kinds(config, "hybrid_override_pattern", _LETTERS)


def _with_experts(config: JsonFile, usual: DecoderConfig) -> ExpertsConfig:
    """The configuration of a folder with experts; raises ModelError."""
    made = routed_config.read_folder(config, usual, dense_layers=())
    key = "moe_shared_expert_intermediate_size"
    return replace(made, shared_size=config.required_integer(key, least=1), dense_size=usual.intermediate_size)


def _hybrid(
    usual: DecoderConfig, mamba: MambaSizes, blocks: tuple[tuple[Block, ...], ...], latent_size: int
) -> HybridConfig:
    """Raises ModelError if no layer has a state space."""
    refuse_without_mamba(blocks)
    num_attending = blocks.count(_ATTENTION)
    usual = replace(usual, tables=(-1,) * num_attending, windows=(0,) * num_attending)
    if isinstance(usual, ExpertsConfig) and _MLP not in blocks:
        usual = replace(usual, dense_size=0)
    return HybridConfig(**vars(usual), mamba=mamba, blocks=blocks, latent_size=latent_size)


def _read_mamba(config: JsonFile) -> MambaSizes:
    num_heads = config.integer("mamba_num_heads", least=1) or 128
    head_dim = config.integer("mamba_head_dim", least=1) or 64
    made = read_sizes(
        config,
        value_size=num_heads * head_dim,
        num_heads=num_heads,
        head_dim=head_dim,
        num_groups=config.integer("n_groups", least=1) or config.integer("mamba_n_groups", least=1) or 8,
        state_size=config.integer("ssm_state_size", least=1) or 128,
        kernel=config.integer("conv_kernel", least=1) or config.integer("mamba_d_conv", least=1) or 4,
        has_convolution_bias=folder_config.read_flag(config, "use_conv_bias", True),
        has_projection_bias=folder_config.read_flag(config, "use_bias", False),
    )
    # transformers, and the maker's own code without kernels, take this for the least step, and no other limit.
    return replace(made, time_limits=(config.positive_number("time_step_min") or _LEAST_STEP, math.inf))
