"""The Granite architecture of IBM's first mixtures of experts (Granite team, "Granite 3.0", 2024)."""

from collections.abc import Set
from dataclasses import dataclass
from typing import Self

from engine.models.architectures.granite import with_multipliers, with_multipliers_of_gguf
from engine.models.parts import folder_config
from engine.models.parts.experts import ExpertsDecoder, read_folder, read_gguf
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Part, Stored
from engine.weights.tensors import rows


@dataclass(frozen=True)
class GraniteMoe(ExpertsDecoder):
    """Granite's attention and multipliers; the shares of a token's experts add up to 1."""

    is_paired_in_gguf = True
    router_names = ("block_sparse_moe.router.layer", "ffn_gate_inp")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        usual = with_multipliers(config, folder_config.read_decoder(config, tensor_names, "granitemoe"))
        return cls(read_folder(config, usual, normalises_shares=True))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(with_multipliers_of_gguf(file, read_gguf(file, normalises_shares=True)))

    def expert_parts(self, hidden: int, inner: int) -> tuple[Part, Part, Part]:
        """As `ExpertsDecoder.expert_parts`; a folder has one tensor of all gates and ups, and one of all downs."""
        halves = (rows(0, inner, 2 * inner), rows(inner, 2 * inner, 2 * inner))
        stored = (Stored(_folder_name("input_linear"), half, 2 * inner) for half in halves)
        gate, up, down = (
            Part(part.shape, {**part.stored, "safetensors": of_folder})
            for part, of_folder in zip(
                super().expert_parts(hidden, inner), (*stored, Stored(_folder_name("output_linear"))), strict=True
            )
        )
        return gate, up, down


def _folder_name(name: str) -> str:
    return f"model.layers.{{layer}}.block_sparse_moe.{name}.weight"
