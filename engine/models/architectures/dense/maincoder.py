"""The Maincoder architecture (Maincode, "Maincoder-1B", 2025)."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from engine.models.architectures.dense.hunyuan import LateNormsDecoder, with_late_norms
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Decoder, Names
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf, Part, with_folder_names
from engine.weights.tensors import paired_rows

_THETA = 1_000_000.0  # where config.json says nothing
_NORMS = ("q_norm", "k_norm")


@dataclass(frozen=True)
class Maincoder(LateNormsDecoder):
    """Llama's layers with norms of each head of queries and keys behind a rotation of adjacent features."""

    is_paired_in_folder = True
    is_paired_in_gguf = True
    query_key_norm_names: ClassVar[Mapping[str, Names]] = Decoder.query_key_norm_names

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if config.flag("use_qk_norm") is False:
            raise config.error("use_qk_norm", "queries and keys without norms are not served for this architecture")
        inner = config.integer("intermediate_size_mlp", least=1)  # the name of its own beside the usual one
        usual = folder_config.read_decoder(
            config if inner is None else config.with_values({"intermediate_size": inner}), tensor_names, "maincoder",
            is_tied=True, default_theta=_THETA, default_epsilon=1e-5,
        )  # fmt: skip
        return cls(with_late_norms(usual))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(with_late_norms(gguf_config.read_decoder(file)))

    def leaves(self) -> tuple[Leaf, ...]:
        return with_folder_names(super().leaves(), {".mlp.": ".feed_forward."})

    def attention_leaves(self) -> list[Leaf]:
        """Norms behind the rotation have the order of features that queries and keys have."""
        paired = paired_rows(self.config.head_dim, self.config.rotary[0].rotary_dim)

        def reordered(part: Part) -> Part:
            return replace(part, stored={kind: replace(each, transform=paired) for kind, each in part.stored.items()})

        return [
            replace(leaf, parts=tuple(map(reordered, leaf.parts))) if leaf.name in _NORMS else leaf
            for leaf in super().attention_leaves()
        ]
