"""The architecture of Jina Embeddings 2 (Günther et al., "Jina Embeddings 2", 2023): BERT with ALiBi and gates."""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from engine.models.architectures.encoders.bert import Bert, read_bert
from engine.models.parts.encoders.encoder import Encoder
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf, LeafKind, Part, Stored
from engine.weights.tensors import rows

_POSITIONS = "position_embedding_type"


@dataclass(frozen=True)
class JinaBertV2(Encoder):
    """Scores of attention fall with the distance of two tokens, and there are no positions besides."""

    are_gates_apart: bool = field(default=False, compare=False)  # from what they multiply, in a GGUF file

    derived_tensors: ClassVar[re.Pattern[str]] = re.compile(Encoder.derived_tensors.pattern + r"|cls\.predictions\..*")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if config.text(_POSITIONS) != "alibi":
            raise config.error(_POSITIONS, 'of this architecture it must be "alibi"')
        if config.text("feed_forward_type") != "geglu":
            raise config.error("feed_forward_type", 'it must be "geglu"')
        usual = read_bert(config.with_values({_POSITIONS: None}), tensor_names)
        return cls(replace(usual, is_gated=True, has_alibi=True))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        config = replace(Bert.from_gguf(file).config, is_gated=True, has_alibi=True)
        return cls(config, are_gates_apart="blk.0.ffn_gate.weight" in file.names)

    def leaves(self) -> tuple[Leaf, ...]:
        usual = {leaf.name: leaf for leaf in super().leaves()}
        for name in ("positions", "up_bias"):
            del usual[name]
        usual["up"] = Leaf("up", LeafKind.GATED, tuple(map(self._half, (0, 1), ("ffn_gate", "ffn_up"))))
        names = {"output.dense.": "mlp.wo.", "output.LayerNorm.": "mlp.layernorm."}
        for name in ("down", "down_bias", "mlp_norm", "mlp_norm_bias"):
            usual[name] = usual[name].renamed("safetensors", lambda stored: _renamed(stored, names))
        return tuple(usual.values())

    def _half(self, index: int, in_gguf: str) -> Part:
        """The gates, 0, or what they multiply, 1; both are in one tensor, but in some GGUF files."""
        size, hidden = self.config.intermediate_size, self.config.hidden_size
        part = self._in_layers((size, hidden), ("mlp.gated_layers", in_gguf if self.are_gates_apart else "ffn_up"))
        take = rows(index * size, (index + 1) * size, 2 * size)
        joined = {name: Stored(stored.name, take) for name, stored in part.stored.items()}
        return replace(part, stored={**joined, "gguf": part.stored["gguf"]} if self.are_gates_apart else joined)


def _renamed(name: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        name = name.replace(old, new)
    return name
