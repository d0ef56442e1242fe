"""Norms of PLaMo, whose weights a folder holds as differences from a number."""

from dataclasses import replace

from engine.weights.leaf import Leaf, Part
from engine.weights.tensors import offset

# Where these leaves' numbers are not 1; source: PFN's code.
_BEHIND_MIXER, _BEHIND_MLP = 1 / 5, 1 / 5**1.5
_OFFSETS = {
    "attention_output_norm": _BEHIND_MIXER, "mamba_out_norm": _BEHIND_MIXER, "down_norm": _BEHIND_MLP,
    "mlp_down_norm": _BEHIND_MLP,
}  # fmt: skip


def with_offset(leaf: Leaf) -> Leaf:
    """The leaf of a norm with the transform of its tensor in a folder."""

    def of_part(part: Part) -> Part:
        stored = replace(part.stored["safetensors"], transform=offset(_OFFSETS.get(leaf.name, 1.0)))
        return replace(part, stored={**part.stored, "safetensors": stored})

    return replace(leaf, parts=tuple(map(of_part, leaf.parts)))


def without_suffix(leaf: Leaf) -> Leaf:
    """The leaf of a norm whose tensor's name in a GGUF file does not end with ".weight"."""
    return leaf.renamed("gguf", lambda name: name.removesuffix(".weight"))
