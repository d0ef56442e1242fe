"""The Falcon-H1 architecture (Zuo et al., "Falcon-H1", 2025): attention and Mamba-2 side by side in each layer."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.hybrids.hybrid_config import Block, HybridConfig, refuse_biases
from engine.models.parts.hybrids.hybrid_decoder import HybridDecoder
from engine.models.parts.hybrids.mamba_sizes import MambaSizes, read_sizes, read_sizes_of_gguf
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf, Part, with_folder_prefixes
from engine.weights.tensors import scaled

_NUM_SSM_MULTIPLIERS = 5  # of gates, values, B, C and time steps


@dataclass(frozen=True)
class _Multipliers:
    """What the weights of a folder are multiplied by; those of a GGUF file are multiplied already."""

    query: float
    key: float
    value: float
    attention_out: float
    gate: float
    down: float
    ssm: tuple[float, ...]
    ssm_out: float


@dataclass(frozen=True)
class FalconH1(HybridDecoder):
    """Multipliers on the inputs and outputs of every product; a norm of what state spaces make in some models."""

    # They follow from the folder's configuration, and are in its weights in memory.
    multipliers: _Multipliers | None = field(default=None, compare=True)

    block_norms: ClassVar[Mapping[Block, Names]] = {
        Block.BOTH: ("input_layernorm", "attn_norm"),
        Block.MLP: ("pre_ff_layernorm", "ffn_norm"),
    }
    output_norm_names: ClassVar[Names] = ("model.final_layernorm", "output_norm")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        for key in ("attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias"):
            if folder_config.read_flag(config, key, False):
                raise config.error(key, "biases are not served")
        usual = folder_config.read_decoder(config, tensor_names, "falcon_h1", default_epsilon=1e-5)
        usual = replace(
            usual,
            embedding_scale=_multiplier(config, "embedding_multiplier"),
            logit_scale=_multiplier(config, "lm_head_multiplier"),
        )
        gate, down = _multiplier_list(config, "mlp_multipliers", 2)
        attention_in = _multiplier(config, "attention_in_multiplier")
        ssm_in = _multiplier(config, "ssm_in_multiplier")
        multipliers = _Multipliers(
            query=attention_in,
            key=attention_in * _multiplier(config, "key_multiplier"),
            value=attention_in,
            attention_out=_multiplier(config, "attention_out_multiplier"),
            gate=gate,
            down=down,
            ssm=tuple(ssm_in * each for each in _multiplier_list(config, "ssm_multipliers", _NUM_SSM_MULTIPLIERS)),
            ssm_out=_multiplier(config, "ssm_out_multiplier"),
        )
        return cls(_hybrid(usual, _read_mamba(config, usual.hidden_size)), multipliers=multipliers)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        refuse_biases(file)
        mamba = replace(read_sizes_of_gguf(file, 0), has_norm="blk.0.ssm_norm.weight" in file.names)
        return cls(_hybrid(gguf_config.read_decoder(file), mamba))

    def leaves(self) -> tuple[Leaf, ...]:
        """As `Decoder.leaves`, by the names that folders have for them, and multiplied."""
        names = {"model.layers.{layer}.mlp.": "model.layers.{layer}.feed_forward."}
        # The converter of the ggml project leaves the ending out.
        leaves = tuple(
            leaf.renamed("gguf", lambda name: name.removesuffix(".weight")) if leaf.name == "mlp_norm" else leaf
            for leaf in with_folder_prefixes(super().leaves(), names)
        )
        multipliers = self.multipliers
        if multipliers is None:
            return leaves
        mamba = self.config.mamba
        states = mamba.num_groups * mamba.state_size
        factors: dict[str, tuple[tuple[float, ...], ...]] = {
            "qkv": ((multipliers.query,), (multipliers.key,), (multipliers.value,)),
            "attention_output": ((multipliers.attention_out,),),
            "mlp_up": ((multipliers.gate,), (1.0,)),
            "mlp_down": ((multipliers.down,),),
            "mamba_in": (multipliers.ssm,),
            "mamba_out": ((multipliers.ssm_out,),),
        }
        widths = (mamba.value_size, mamba.value_size, states, states, mamba.num_heads)

        def of_leaf(leaf: Leaf) -> Leaf:
            if leaf.name not in factors:
                return leaf
            parts = (
                _scaled(part, widths if len(of_part) > 1 else part.shape[:1], of_part)
                for part, of_part in zip(leaf.parts, factors[leaf.name], strict=True)
            )
            return replace(leaf, parts=tuple(parts))

        return tuple(map(of_leaf, leaves))


def _scaled(part: Part, widths: tuple[int, ...], factors: tuple[float, ...]) -> Part:
    """The part of a folder's tensor, so many outputs of it multiplied by each factor."""
    if all(factor == 1.0 for factor in factors):
        return part
    stored = replace(part.stored["safetensors"], transform=scaled(*zip(widths, factors, strict=True)))
    return replace(part, stored={**part.stored, "safetensors": stored})


def _hybrid(usual: DecoderConfig, mamba: MambaSizes) -> HybridConfig:
    return HybridConfig(**vars(usual), mamba=mamba, blocks=((Block.BOTH, Block.MLP),) * usual.num_layers)


def _read_mamba(config: JsonFile, hidden_size: int) -> MambaSizes:
    head_dim = None if config.value("mamba_d_head") == "auto" else config.integer("mamba_d_head", least=1)
    expanded = (config.integer("mamba_expand", least=1, most=64) or 2) * hidden_size
    value_size = config.integer("mamba_d_ssm", least=1) if "mamba_d_ssm" in config.names else 1024
    made = read_sizes(
        config,
        value_size=value_size or expanded,
        num_heads=config.integer("mamba_n_heads", least=1) or 128,
        head_dim=head_dim,
        num_groups=config.integer("mamba_n_groups", least=1) or 1,
        state_size=config.integer("mamba_d_state", least=1) or 256,
        kernel=config.integer("mamba_d_conv", least=1) or 4,
        has_convolution_bias=folder_config.read_flag(config, "mamba_conv_bias", True),
        has_projection_bias=False,
    )
    return replace(
        made,
        has_norm=folder_config.read_flag(config, "mamba_rms_norm", False),
        norms_first=folder_config.read_flag(config, "mamba_norm_before_gate", True),
    )


def _multiplier(config: JsonFile, key: str) -> float:
    value = config.number(key)
    return 1.0 if value is None else value


def _multiplier_list(config: JsonFile, key: str, count: int) -> tuple[float, ...]:
    values = config.value(key)
    if values is None:
        return (1.0,) * count
    if (
        not isinstance(values, list)
        or len(values) != count
        or any(isinstance(each, bool) or not isinstance(each, int | float) or not abs(each) < 1e9 for each in values)
    ):
        raise config.error(key, f"it must be {count} numbers")
    return tuple(map(float, values))
