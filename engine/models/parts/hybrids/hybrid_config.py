"""The configuration of decoders whose layers are of several kinds of blocks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cache.states import StateArray
from engine.interface.errors import ModelError
from engine.models.parts.experts import ExpertsConfig
from engine.models.parts.hybrids.mamba_sizes import MambaSizes
from engine.weights.formats.fields import Fields
from engine.weights.formats.gguf_tensors import GGUFTensors


class Block(StrEnum):
    """What is added to the residual stream at once."""

    MAMBA = "mamba"  # a state space
    ATTENTION = "attention"
    BOTH = "both"  # attention and a state space side by side
    MLP = "mlp"  # a dense feed-forward block
    EXPERTS = "experts"  # a mixture of experts


@dataclass(frozen=True, kw_only=True)
class HybridConfig(ExpertsConfig):
    """A decoder's, in which `tables` and `windows` are those of the layers with attention."""

    mamba: MambaSizes
    blocks: tuple[tuple[Block, ...], ...]  # of each layer, one after the other
    latent_size: int = 0  # of what experts read and write in place of the hidden state; 0: they read that

    def layers_with(self, *blocks: Block) -> tuple[int, ...]:
        """The layers with one of these blocks."""
        return tuple(layer for layer, of_layer in enumerate(self.blocks) if not set(blocks).isdisjoint(of_layer))

    @property
    def attention_layers(self) -> tuple[int, ...]:
        return self.layers_with(Block.ATTENTION, Block.BOTH)

    @property
    def mamba_layers(self) -> tuple[int, ...]:
        return self.layers_with(Block.MAMBA, Block.BOTH)

    @property
    def num_paged_layers(self) -> int:
        return len(self.attention_layers)

    @property
    def states(self) -> tuple[StateArray, ...]:
        mamba, num_layers = self.mamba, len(self.mamba_layers)
        if not num_layers:
            return ()
        return (
            StateArray("inputs", num_layers, (mamba.kernel - 1, mamba.num_channels)),
            StateArray("matrices", num_layers, (mamba.num_heads, mamba.state_size, mamba.head_dim)),
        )

    @property
    def product_inputs(self) -> dict[str, int]:
        """As `ModelConfig.product_inputs`."""
        sizes = {"hidden": self.hidden_size}
        if self.mamba_layers:
            sizes["values of state spaces"] = self.mamba.value_size
        if self.attention_layers:
            sizes["queries"] = self.q_size
        if self.layers_with(Block.MLP, Block.EXPERTS):
            sizes["intermediate"] = self.intermediate_size
        optional = {
            "shared expert": self.shared_size, "time steps": self.mamba.time_rank,
            "layers without experts": self.dense_size, "latent of experts": self.latent_size,
        }  # fmt: skip
        return sizes | {name: size for name, size in optional.items() if size}

    @property
    def joined_outputs(self) -> dict[str, int]:
        """As `ModelConfig.joined_outputs`."""
        joined = super().joined_outputs if self.attention_layers else {}
        return {**joined, "states": self.mamba.state_size} if self.mamba.time_rank else joined

    @property
    def recurrence_sizes(self) -> dict[str, int]:
        """As `ModelConfig.recurrence_sizes`."""
        return {"heads of state spaces": self.mamba.head_dim, "states": self.mamba.state_size} if self.states else {}


def read_kinds(
    fields: Fields, key: str, names: Mapping[str, tuple[Block, ...]], num_layers: int | None = None
) -> tuple[tuple[Block, ...], ...]:
    """The blocks of each layer, which a list names; raises ModelError."""
    kinds = fields.value(key)
    if not isinstance(kinds, Sequence) or not kinds or any(not isinstance(k, str) or k not in names for k in kinds):
        raise fields.error(key, f"it must list for each layer one of {', '.join(map(repr, names))}")
    if num_layers is not None and len(kinds) != num_layers:
        raise fields.error(key, f"it must list {num_layers} layers")
    return tuple(names[kind] for kind in kinds)


def refuse_biases(file: GGUFTensors) -> None:
    """Raises ModelError if feed-forward blocks of a GGUF file have biases."""
    name = next((name for name in sorted(file.names) if name.endswith((".ffn_up.bias", ".ffn_down.bias"))), None)
    if name is not None:
        raise ModelError(f"{name}: biases of feed-forward blocks are not served")


def refuse_without_mamba(blocks: tuple[tuple[Block, ...], ...]) -> None:
    """Raises ModelError if no layer has a state space."""
    if not any(block in (Block.MAMBA, Block.BOTH) for of_layer in blocks for block in of_layer):
        raise ModelError("no layer has a state space, and the architecture has some")
