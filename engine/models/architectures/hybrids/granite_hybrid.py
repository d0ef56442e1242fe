"""The Granite architecture of IBM's hybrids (Granite team, "Granite 4.0", 2025): Mamba-2 in most layers."""

from collections.abc import Set
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from engine.models.architectures.granite import with_multipliers, with_multipliers_of_gguf
from engine.models.parts import folder_config, gguf_config, rotary
from engine.models.parts.decoder import Names, in_layers
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.hybrids.hybrid_config import Block, HybridConfig, read_kinds, refuse_biases
from engine.models.parts.hybrids.hybrid_decoder import HybridDecoder
from engine.models.parts.hybrids.mamba_sizes import MambaSizes, read_sizes, read_sizes_of_gguf
from engine.models.parts.rotary_config import read_rotary_dim_of_gguf, read_rotary_of_gguf
from engine.models.parts.routing import Routing
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Part, Stored
from engine.weights.tensors import rows

# Old and new releases of transformers name kinds of layers differently.
_KINDS = {
    "mamba": (Block.MAMBA,), "linear_attention": (Block.MAMBA,),
    "attention": (Block.ATTENTION,), "full_attention": (Block.ATTENTION,),
}  # fmt: skip


@dataclass(frozen=True)
class GraniteHybrid(HybridDecoder):
    """Granite's multipliers; a block that every token goes through, and experts beside it where a model has some."""

    is_paired_in_gguf = True
    router_names: ClassVar[Names] = ("block_sparse_moe.router.layer", "ffn_gate_inp")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = with_multipliers(config, folder_config.read_decoder(config, tensor_names, "granitemoehybrid"))
        if config.text("position_embedding_type") not in (None, "nope", "rope"):
            raise config.error("position_embedding_type", 'it must be "rope" or "nope"')
        kinds = read_kinds(config, "layer_types", _KINDS, usual.num_layers)
        num_experts = config.integer("num_local_experts", least=0) or 0
        shared_size = config.required_integer("shared_intermediate_size", least=1)
        made = _hybrid(
            usual, _read_mamba(config, usual.hidden_size), kinds, num_experts=num_experts, shared_size=shared_size,
            num_picked=config.required_integer("num_experts_per_tok", least=1) if num_experts else 0,
            rotates=config.text("position_embedding_type") == "rope",
        )  # fmt: skip
        return cls(made)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        refuse_biases(file)
        fields, num_layers = file.fields, file.fields.required_integer("block_count", least=1)
        attends = gguf_config.has_of_layers(file, "attention.head_count_kv", num_layers)
        sizes = gguf_config.read_sizes(file)
        table = read_rotary_of_gguf(file, read_rotary_dim_of_gguf(file, sizes["head_dim"]), sizes["context_length"])
        first = attends.index(True) if True in attends else 0
        usual = with_multipliers_of_gguf(file, gguf_config.read_decoder(file, rotary=table, bias_layer=first))
        num_experts = fields.integer("expert_count") if fields.value("expert_count") else 0
        shared_key = "expert_shared_feed_forward_length"
        made = _hybrid(
            usual, read_sizes_of_gguf(file, attends.index(False) if False in attends else 0),
            tuple((Block.ATTENTION,) if each else (Block.MAMBA,) for each in attends),
            num_experts=num_experts or 0,
            shared_size=fields.required_integer(shared_key, least=1) if num_experts else usual.intermediate_size,
            num_picked=fields.required_integer("expert_used_count", least=1) if num_experts else 0,
            rotates=fields.flag("rope.scaling.finetuned") is not False,
        )  # fmt: skip
        return cls(made)

    def expert_parts(self, hidden: int, inner: int) -> tuple[Part, Part, Part]:
        """As `ExpertsDecoder.expert_parts`; a folder has one tensor of all gates and ups, and one of all downs."""
        names = ("input_linear", "input_linear", "output_linear")
        parts = super().expert_parts(hidden, inner)
        gate, up, down = (
            _in_folder(part, f"block_sparse_moe.{name}", half, inner)
            for part, name, half in zip(parts, names, (0, 1, None), strict=True)
        )
        return gate, up, down

    def mlp_parts(self, hidden: int, inner: int) -> tuple[tuple[Part, ...], Part]:
        return _shared_mlp(hidden, inner, "")

    def shared_parts(self, hidden: int, inner: int) -> tuple[tuple[Part, ...], Part]:
        return _shared_mlp(hidden, inner, "_shexp")


def _hybrid(
    usual: DecoderConfig, mamba: MambaSizes, kinds: tuple[tuple[Block, ...], ...], *, num_experts: int,
    num_picked: int, shared_size: int, rotates: bool,
) -> HybridConfig:  # fmt: skip
    """The configuration with the feed-forward block behind each kind; raises ModelError."""
    Routing(num_experts=num_experts, num_picked=num_picked).check()
    if not num_experts:
        usual = replace(usual, intermediate_size=shared_size)
    num_attending = sum(Block.ATTENTION in kind for kind in kinds)
    # Files of a model that does not rotate may state a rotation nevertheless.
    table = usual.rotary if rotates else (rotary.plain(usual.head_dim, 10000.0),)
    usual = replace(usual, rotary=table, tables=(0 if rotates else -1,) * num_attending, windows=(0,) * num_attending)
    behind = Block.EXPERTS if num_experts else Block.MLP
    return HybridConfig(
        **vars(usual), mamba=mamba, blocks=tuple((*kind, behind) for kind in kinds), num_experts=num_experts,
        num_picked=num_picked, normalises_shares=True, shared_size=shared_size if num_experts else 0,
    )  # fmt: skip


def _read_mamba(config: JsonFile, hidden_size: int) -> MambaSizes:
    head_dim = None if config.value("mamba_d_head") == "auto" else config.integer("mamba_d_head", least=1)
    return read_sizes(
        config,
        value_size=(config.integer("mamba_expand", least=1, most=64) or 2) * hidden_size,
        num_heads=config.integer("mamba_n_heads", least=1) or 128,
        head_dim=head_dim,
        num_groups=config.integer("mamba_n_groups", least=1) or 1,
        state_size=config.integer("mamba_d_state", least=1) or 256,
        kernel=config.integer("mamba_d_conv", least=1) or 4,
        has_convolution_bias=folder_config.read_flag(config, "mamba_conv_bias", True),
        has_projection_bias=folder_config.read_flag(config, "mamba_proj_bias", False),
    )


def _shared_mlp(hidden: int, inner: int, suffix: str) -> tuple[tuple[Part, ...], Part]:
    """The block that every token goes through, whose gate and up are one tensor of a folder."""
    up = tuple(
        _in_folder(in_layers((inner, hidden), ("", f"ffn_{kind}{suffix}")), "shared_mlp.input_linear", half, inner)
        for half, kind in enumerate(("gate", "up"))
    )
    return up, in_layers((hidden, inner), ("shared_mlp.output_linear", f"ffn_down{suffix}"))


def _in_folder(part: Part, name: str, half: int | None, inner: int) -> Part:
    """The same part with its tensor in a folder, or the first or second half of the tensor's outputs."""
    name = f"model.layers.{{layer}}.{name}.weight"
    stored = (
        Stored(name) if half is None else Stored(name, rows(half * inner, (half + 1) * inner, 2 * inner), 2 * inner)
    )
    return replace(part, stored={**part.stored, "safetensors": stored})
