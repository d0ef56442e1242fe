"""The architecture of PLaMo 2 (Preferred Networks, "PLaMo 2 Technical Report", 2025): state spaces and attention."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from engine.backends.base.even_sums import normed
from engine.backends.base.norms import of_layer
from engine.models.architectures.plamo.offset_norms import with_offset, without_suffix
from engine.models.parts import folder_config, gguf_config, rotary
from engine.models.parts.decoder import Names, in_layers, joined
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.hybrids.hybrid_config import Block, HybridConfig, refuse_without_mamba
from engine.models.parts.hybrids.mamba_decoder import MambaDecoder
from engine.models.parts.hybrids.mamba_sizes import MambaSizes
from engine.models.parts.rotary_config import read_rotary_of_gguf
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.layout import Params
from engine.weights.leaf import Leaf, LeafKind, Part, Stored, with_folder_names, with_folder_prefixes
from engine.weights.tensors import interleaved

# Where config.json says nothing; source: PFN's configuration.
_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 4, "hidden_size_per_head": 128, "attention_window_size": 2048, "mamba_d_state": 64,
    "mamba_d_conv": 4, "mamba_num_heads": 64, "mamba_step": 2, "tie_word_embeddings": True, "rope_theta": 10_000.0,
    "rope_local_theta": 10_000.0, "max_position_embeddings": 2048,
}  # fmt: skip
_HEAD_EPSILON = 1e-6  # of the norms of queries and keys, whatever a file says of the others
_LEAST_TIME_RANK = 64
_MOST_CONTEXT = 1 << 17  # tokens of a request. Configurations state ten million, because a state holds any number
_FOLDER_NAMES = {
    ".mixer.x_proj.": ".mixer.bcdt_proj.", ".mixer.dt_proj.bias": ".mixer.dt_bias",
    ".mixer.dt_layernorm.weight": ".mixer.dt_norm_weight", ".mixer.b_layernorm.weight": ".mixer.B_norm_weight",
    ".mixer.c_layernorm.weight": ".mixer.C_norm_weight",
}  # fmt: skip


@dataclass(frozen=True)
class Plamo2(MambaDecoder):
    """Mamba's time steps for heads in place of channels; norms before and behind each block."""

    can_be_split = False  # because heads are normed outside attention

    block_norms: ClassVar[Mapping[Block, Names]] = {
        Block.MAMBA: ("pre_mixer_norm", "attn_norm"),
        Block.ATTENTION: ("pre_mixer_norm", "attn_norm"),
        Block.MLP: ("pre_mlp_norm", "ffn_norm"),
    }
    mamba_name = "mixer"
    made_parts = ("b", "c", "time")
    attention_output_names: ClassVar[Names] = ("mixer.o_proj", "attn_output")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        config = config.with_values({"head_dim": config.value("hidden_size_per_head")})
        if config.flag("mamba_enabled") is False:
            raise config.error("mamba_enabled", "the architecture has state spaces")
        head_dim = folder_config.read_sizes(config)["head_dim"]
        full, local = (
            rotary.plain(head_dim, config.required_positive_number(key)) for key in ("rope_theta", "rope_local_theta")
        )
        usual = folder_config.read_decoder(config, tensor_names, "plamo2", rotary=full)
        step, num_layers = config.required_integer("mamba_step", least=2), usual.num_layers
        attends = tuple(layer % step == step // 2 for layer in range(num_layers))
        if num_layers <= step // 2:
            attends = (*(False,) * (num_layers - 1), True)
        sees_all = _read_layers(config, "full_attention_idx", num_layers)
        # The field counts the tokens before a query's own.
        window = config.required_integer("attention_window_size", least=1) + 1
        windows = tuple(0 if layer in sees_all else window for layer in range(num_layers) if attends[layer])
        mamba = _mamba(
            usual.hidden_size, num_heads=config.required_integer("mamba_num_heads", least=1), head_dim=head_dim,
            state_size=config.required_integer("mamba_d_state", least=1),
            kernel=config.required_integer("mamba_d_conv", least=1),
        )  # fmt: skip
        if any(windows):
            usual = replace(usual, rotary=(full, local))
        return cls(_hybrid(usual, mamba, attends, windows))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        """Files do not say which layers have a window, so that all layers see all, as in llama.cpp."""
        fields = file.fields
        sizes = gguf_config.read_sizes(file)
        attends = gguf_config.has_of_layers(file, "attention.head_count_kv", sizes["num_layers"])
        full = read_rotary_of_gguf(file, sizes["head_dim"], sizes["context_length"])
        usual = gguf_config.read_decoder(file, rotary=full)
        num_heads = fields.required_integer("ssm.time_step_rank", least=1)
        value_size = fields.required_integer("ssm.inner_size", least=1)
        if value_size % num_heads:
            raise fields.error("ssm.inner_size", f"it must be a multiple of the {num_heads} heads of a state space")
        mamba = _mamba(
            usual.hidden_size, num_heads=num_heads, head_dim=value_size // num_heads,
            state_size=fields.required_integer("ssm.state_size", least=1),
            kernel=fields.required_integer("ssm.conv_kernel", least=1),
        )  # fmt: skip
        return cls(_hybrid(usual, mamba, attends, (0,) * sum(attends)))

    def leaves(self) -> tuple[Leaf, ...]:
        """As `Decoder.leaves`, by the names that folders have for layers."""
        return with_folder_prefixes(super().leaves(), {"model.layers.": "model.layers.layers."})

    def norm_leaves(self, leaf: str, size: int, names: Names, *, is_per_layer: bool = True) -> list[Leaf]:
        leaves = [with_offset(each) for each in super().norm_leaves(leaf, size, names, is_per_layer=is_per_layer)]
        return [without_suffix(each) if names[1].startswith("post_") else each for each in leaves]

    def attention_leaves(self) -> list[Leaf]:
        """As `HybridDecoder.attention_leaves`, with norms of heads, and of what is added."""
        config, behind = self.config, ("post_mixer_norm", "post_attention_norm")
        leaves = super().attention_leaves()
        leaves += self._in_layers(config.mamba_layers, self.norm_leaves("mamba_out_norm", config.hidden_size, behind))
        of_heads = [
            Leaf(
                f"{kind}_head_norm", LeafKind.VECTOR,
                (
                    Part(
                        (num_heads, config.head_dim),
                        {
                            "safetensors": Stored(f"model.layers.{{layer}}.mixer.{kind}_weight"),
                            "gguf": Stored(f"blk.{{layer}}.attn_{kind}_norm.weight"),
                        },
                    ),
                ),
                is_exact=True,
            )
            for kind, num_heads in (("q", config.num_heads), ("k", config.num_kv_heads))
        ]  # fmt: skip
        of_output = self.norm_leaves("attention_output_norm", config.hidden_size, behind)
        return leaves + self._in_layers(config.attention_layers, of_heads + of_output)

    def _in_layers(self, layers: tuple[int, ...], leaves: list[Leaf]) -> list[Leaf]:
        return [replace(leaf, layers=layers) for leaf in leaves] if layers else []

    def mamba_leaves(self) -> list[Leaf]:
        """As `MambaDecoder.mamba_leaves`; a head's gates and values are neighbours."""
        mamba, renamed = self.config.mamba, []
        turned = interleaved(mamba.num_heads, (mamba.head_dim, mamba.head_dim), (1, 0))
        for leaf in with_folder_names(super().mamba_leaves(), _FOLDER_NAMES):
            if leaf.name in ("mamba_time_norm", "mamba_b_norm", "mamba_c_norm"):
                leaf = without_suffix(leaf)
            if leaf.name == "mamba_in":
                (part,) = leaf.parts
                stored = {name: replace(each, transform=turned) for name, each in part.stored.items()}
                leaf = replace(leaf, parts=(replace(part, stored=stored),))
            renamed.append(leaf)
        return renamed

    def mlp_leaves(self) -> list[Leaf]:
        """As `HybridDecoder.mlp_leaves`, with the norm of what is added."""
        names = ("post_mlp_norm", "post_ffw_norm")
        return [*super().mlp_leaves(), *self.norm_leaves("mlp_down_norm", self.config.hidden_size, names)]

    def mlp_parts(self, hidden: int, inner: int) -> tuple[tuple[Part, ...], Part]:
        gate_up = joined((inner, inner), hidden, ("mlp.gate_up_proj", "ffn_up"))
        return gate_up, in_layers((hidden, inner), ("mlp.down_proj", "ffn_down"))

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        """As `Decoder.qkv_parts`: rows of one matrix."""
        config = self.config
        return joined((config.q_size, config.kv_size, config.kv_size), inputs, ("mixer.qkv_proj", "attn_qkv"))

    def normed_heads(self, qkv: jax.Array, params: Params, index: jax.Array) -> jax.Array:
        """Queries and keys normed, with weights of each head."""
        config, size = self.config, self.config.q_size + self.config.kv_size
        weights = jnp.concatenate([of_layer(params[f"{kind}_head_norm"], index) for kind in "qk"], axis=-1)
        heads = qkv[:, :size].reshape(len(qkv), -1, config.head_dim)
        made = normed(heads, weights.T, _HEAD_EPSILON).reshape(len(qkv), size).astype(qkv.dtype)
        return jnp.concatenate([made, qkv[:, size:]], axis=1)


def _read_layers(config: JsonFile, key: str, num_layers: int) -> frozenset[int]:
    """Layers that a configuration lists, or none; raises ModelError."""
    layers = config.value(key)
    if layers is None:
        return frozenset()
    is_list = isinstance(layers, Sequence) and not isinstance(layers, str)
    if not is_list or any(not isinstance(each, int) or not 0 <= each < num_layers for each in layers):
        raise config.error(key, f"it must list layers, from 0 to {num_layers - 1}")
    return frozenset(layers)


def _mamba(hidden_size: int, *, num_heads: int, head_dim: int, state_size: int, kernel: int) -> MambaSizes:
    return MambaSizes(
        num_heads=num_heads, head_dim=head_dim, num_groups=1, state_size=state_size, kernel=kernel,
        has_convolution_bias=False, has_norm=False, time_rank=max(_LEAST_TIME_RANK, hidden_size // 16),
        steps_by_head=True,
    )  # fmt: skip


def _hybrid(
    usual: DecoderConfig, mamba: MambaSizes, attends: tuple[bool, ...], windows: tuple[int, ...]
) -> HybridConfig:  # fmt: skip
    """Raises ModelError if no layer has a state space."""
    blocks = tuple((Block.ATTENTION if each else Block.MAMBA, Block.MLP) for each in attends)
    refuse_without_mamba(blocks)
    tables = tuple(int(window > 0) for window in windows)
    context_length = min(usual.context_length, _MOST_CONTEXT)
    usual = replace(usual, windows=windows, tables=tables, context_length=context_length)
    return HybridConfig(**vars(usual), mamba=mamba, blocks=blocks)
