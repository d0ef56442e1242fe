"""Files in which an expert's gate and up are one tensor."""

import re
from collections.abc import Iterable, Set
from dataclasses import replace

from engine.weights.leaf import Leaf, Part, Stored
from engine.weights.tensors import Transform, rows

ExpertParts = tuple[Part, Part, Part]  # of the gate, the up and the down

_OF_EXPERT = re.compile(r"(?P<experts>.*\.experts\.)\{expert\}\.(?P<kind>gate|up|down)_proj\.weight")


def joined_experts_of(tensor_names: Set[str], file_format: str) -> frozenset[str]:
    """The format, where an expert's gate and up are one tensor in files of it; else nothing."""
    is_joined = any(name.endswith((".mlp.experts.gate_up_proj", ".ffn_gate_up_exps.weight")) for name in tensor_names)
    return frozenset({file_format} if is_joined else ())


def with_joined_experts(parts: ExpertParts, formats: frozenset[str], inner: int) -> ExpertParts:
    """The parts of an expert with `inner` features, as files of these formats hold them: a layer's in two tensors."""
    gate, up, down = parts
    if "safetensors" in formats:
        name = "model.layers.{layer}.mlp.experts."
        gate, up = (
            _stored_as(part, "safetensors", Stored(f"{name}gate_up_proj", take, 2 * inner))
            for part, take in zip((gate, up), _halves(inner), strict=True)
        )
        down = _stored_as(down, "safetensors", Stored(f"{name}down_proj"))
    if "gguf" in formats:
        gate, up = (
            _stored_as(part, "gguf", Stored("blk.{layer}.ffn_gate_up_exps.weight", take, 2 * inner))
            for part, take in zip((gate, up), _halves(inner), strict=True)
        )
    return gate, up, down


def with_stored(parts: ExpertParts, file_format: str, stored: tuple[Stored, Stored, Stored]) -> ExpertParts:
    """The parts of an expert with other tensors in one format of files."""
    gate, up, down = parts
    return (
        _stored_as(gate, file_format, stored[0]),
        _stored_as(up, file_format, stored[1]),
        _stored_as(down, file_format, stored[2]),
    )


def with_experts_of_memory(leaves: Iterable[Leaf], tensor_names: Set[str]) -> tuple[Leaf, ...]:
    """The leaves of a folder that may hold experts as transformers 5 does in memory, a layer's in two tensors.

    It writes such folders where it is asked not to go back to the published form (`save_original_format=False`).
    """
    if not any(name.endswith(".experts.gate_up_proj") for name in tensor_names):
        return tuple(leaves)
    return tuple(replace(leaf, parts=tuple(map(_of_memory, leaf.parts))) for leaf in leaves)


def _of_memory(part: Part) -> Part:
    stored = part.stored.get("safetensors")
    found = None if stored is None or stored.transform is not None else _OF_EXPERT.fullmatch(stored.name)
    if found is None:
        return part
    if found["kind"] == "down":
        return _stored_as(part, "safetensors", Stored(f"{found['experts']}down_proj"))
    inner = part.shape[0]
    take = _halves(inner)[found["kind"] == "up"]
    return _stored_as(part, "safetensors", Stored(f"{found['experts']}gate_up_proj", take, 2 * inner))


def _halves(size: int) -> tuple[Transform, Transform]:
    return rows(0, size, 2 * size), rows(size, 2 * size, 2 * size)


def _stored_as(part: Part, file_format: str, stored: Stored) -> Part:
    return replace(part, stored={**part.stored, file_format: stored})
