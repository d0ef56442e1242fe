"""The leaves of a model that adapters can change, and the names of their modules."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from engine.models.parts.model import Model
from engine.weights.leaf import Leaf, LeafKind, Part

_GRAIN = 16  # outputs and inputs of what the kernels of adapters take are multiples of it
_SUFFIX = ".weight"
# How the same module begins in the checkpoints of different releases and classes.
PREFIXES = frozenset({"base_model", "model", "language_model", "text_model", "transformer"})


@dataclass(frozen=True)
class AdapterTarget:
    """One leaf, whose parts are modules in every layer that has it."""

    leaf: Leaf
    layers: tuple[int, ...]

    @property
    def name(self) -> str:
        """Of the leaf, in the parameter tree."""
        return self.leaf.name

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.leaf.parts

    @property
    def num_inputs(self) -> int:
        return self.parts[0].shape[1]

    @property
    def ends(self) -> tuple[int, ...]:
        """Of each part, among the leaf's outputs."""
        return tuple(accumulate(part.shape[0] for part in self.parts))

    def module(self, part: Part, layer: int, file_format: str = "safetensors") -> str:
        """The plain name of a part's module, which it may share with other parts, in one format of files."""
        return plain_name(part.stored[file_format].name.removesuffix(_SUFFIX).format(layer=layer))


def targets_of(model: Model) -> tuple[AdapterTarget, ...]:
    """Those of the products of a decoder's layers, without experts and routers; none where it takes no adapters."""
    if not model.takes_adapters:
        return ()
    every = tuple(range(model.config.num_layers))
    return tuple(
        AdapterTarget(leaf, every if leaf.layers is None else leaf.layers)
        for leaf in model.leaves()
        if leaf.kind in (LeafKind.MATRIX, LeafKind.GATED)
        and leaf.is_per_layer
        and not leaf.num_experts
        and not leaf.is_exact
        and not leaf.is_of_pictures
        and all(size % _GRAIN == 0 for part in leaf.parts for size in part.shape)
    )


def plain_name(module: str) -> str:
    """A module's name without what names its model: `layers.3.self_attn.q_proj`."""
    words = module.split(".")
    while len(words) > 1 and words[0] in PREFIXES:
        words.pop(0)
    return ".".join(words)
