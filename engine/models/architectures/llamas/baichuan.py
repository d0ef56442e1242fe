"""The Baichuan architectures (Yang et al., "Baichuan 2: Open Large-scale Language Models", 2023)."""

import dataclasses
from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.alibi import with_alibi
from engine.models.parts.decoder import Decoder, joined
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf, Part
from engine.weights.tensors import UnitRows, paired_rows

_LAYERS_WITH_ALIBI = 40  # of 13B, of which files say it in no other way
_NORMED_VOCABULARY = 125696  # of Baichuan 2, whose output matrix has rows of length 1


@dataclass(frozen=True)
class Baichuan(Decoder):
    """Llama's layers, in 13B with scores that fall with distance in the place of a rotation; joined in folders."""

    model_type = "baichuan"

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        """Configurations of models with ALiBi have no `max_position_embeddings`."""
        has_alibi = config.value("max_position_embeddings") is None
        length = config.value("model_max_length") if has_alibi else config.value("max_position_embeddings")
        made = folder_config.read_decoder(
            config.with_values({"max_position_embeddings": length}), tensor_names, cls.model_type
        )
        return cls(with_alibi(made) if has_alibi else made)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        made = gguf_config.read_decoder(file)
        return cls(with_alibi(made) if made.num_layers == _LAYERS_WITH_ALIBI else made)

    def leaves(self) -> tuple[Leaf, ...]:
        is_normed = self.config.vocab_size == _NORMED_VOCABULARY
        return tuple(_normed(leaf) if is_normed and leaf.name == "output" else leaf for leaf in super().leaves())

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        """A folder has all queries, then all keys, then all values in one tensor."""
        config = self.config
        sizes = (config.q_size, config.kv_size, config.kv_size)
        in_folder = joined(sizes, inputs, ("self_attn.W_pack", ""))
        paired = paired_rows(config.head_dim, config.head_dim)  # in files of models that do not rotate, too
        return tuple(
            dataclasses.replace(
                part,
                stored={
                    "safetensors": one.stored["safetensors"],
                    "gguf": dataclasses.replace(part.stored["gguf"], transform=transform),
                },
            )
            for part, one, transform in zip(super().qkv_parts(inputs), in_folder, (paired, paired, None), strict=True)
        )


def _normed(leaf: Leaf) -> Leaf:
    def of_part(part: Part) -> Part:
        stored = {kind: dataclasses.replace(each, transform=UnitRows) for kind, each in part.stored.items()}
        return dataclasses.replace(part, stored=stored)

    return dataclasses.replace(leaf, parts=tuple(map(of_part, leaf.parts)))
