"""Declarations of an architecture's parameters: for each leaf its tensors in files and how it may be split."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from engine.weights.tensors import Transform


class LeafKind(StrEnum):
    """How backends use a leaf."""

    VECTOR = "vector"  # norms and biases: an array for every backend
    MATRIX = "matrix"  # of a product
    GATED = "gated"  # of a gated product: its first half of outputs gates the second
    EMBEDDING = "embedding"  # [vocab, hidden], whose rows are looked up, or multiplied into logits


class Split(StrEnum):
    """Along which axis a leaf may be split over devices."""

    REPLICATED = "replicated"
    OUTPUTS = "outputs"  # columns of the product; a gated leaf's halves are split alike
    INPUTS = "inputs"  # rows of the product, whose results are then to be added up
    HEADS = "heads"  # as OUTPUTS, in whole heads of each part
    EXPERTS = "experts"  # whole experts


@dataclass(frozen=True)
class Stored:
    """The name of a tensor in one format of files, and the transform that it needs."""

    # `{layer}` and `{expert}` stand for their numbers. In a leaf of experts, a name without `{expert}` is that of one
    # tensor [num_experts, *shape] of all experts.
    name: str
    transform: Transform | None = None
    num_outputs: int | None = None  # of an expert in a tensor of all of them, where the transform takes some
    is_transposed: bool = False  # whether an expert in such a tensor is [inputs, outputs], which the transform turns
    # In which way it may be stored too, which the shape of a tensor of all experts tells.
    otherwise: Stored | None = None
    # Outputs and inputs of an expert, where the tensor is one matrix [num_experts * outputs, inputs].
    joined_shape: tuple[int, int] | None = None


@dataclass(frozen=True)
class Part:
    """One tensor of a leaf in every layer, and where the leaf is of experts, in every expert."""

    shape: tuple[int, ...]  # row-major; a matrix is [outputs, inputs]
    stored: Mapping[str, Stored]  # by the file's format
    padded_shape: tuple[int, ...] | None = None  # with zeros behind each axis; None: as it is


@dataclass(frozen=True)
class Leaf:
    """One array, or one packed matrix, of the parameter tree."""

    name: str  # in the parameter tree
    kind: LeafKind
    parts: tuple[Part, ...]  # joined along their outputs
    split: Split = Split.REPLICATED
    is_per_layer: bool = True  # stacked over all layers; else there is one
    layers: tuple[int, ...] | None = None  # that have it, if not all
    is_exact: bool = False  # kept in float32, as a router's: rounding would change the chosen experts
    may_be_int8: bool = False  # floats of a file too, where a layout is faster so and the configuration says nothing
    is_of_pictures: bool = False  # of their encoder, in a precision that the layout chooses
    num_experts: int = 0  # above 0, expert i of a layer is at index layer * num_experts + i of the stack

    def renamed(self, file_format: str, new_name: Callable[[str], str]) -> Leaf:
        """The same with other names of its tensors in one format of files."""

        def of_part(part: Part) -> Part:
            stored = part.stored[file_format]
            return replace(part, stored={**part.stored, file_format: replace(stored, name=new_name(stored.name))})

        return replace(self, parts=tuple(map(of_part, self.parts)))


def with_folder_names(leaves: Iterable[Leaf], names: Mapping[str, str]) -> tuple[Leaf, ...]:
    """The leaves with other parts in the names that their tensors have in a folder: each is replaced, in this order."""

    def renamed(name: str) -> str:
        for usual, own in names.items():
            name = name.replace(usual, own)
        return name

    return tuple(leaf.renamed("safetensors", renamed) for leaf in leaves)


def with_folder_prefixes(leaves: Iterable[Leaf], prefixes: Mapping[str, str]) -> tuple[Leaf, ...]:
    """The leaves with other beginnings of the names that their tensors have in a folder: the first that fits counts."""

    def renamed(name: str) -> str:
        return next((own + name[len(usual) :] for usual, own in prefixes.items() if name.startswith(usual)), name)

    return tuple(leaf.renamed("safetensors", renamed) for leaf in leaves)
