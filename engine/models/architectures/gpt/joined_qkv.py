"""Decoders whose files join queries, keys and values in one tensor, in groups of heads that share keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from engine.models.parts.decoder import Names
from engine.models.parts.plain_mlp import PlainMlpDecoder
from engine.weights.leaf import Leaf, Part, Stored
from engine.weights.tensors import Transform, interleaved, rows


@dataclass(frozen=True)
class JoinedQkvDecoder(PlainMlpDecoder):
    """A folder has one group of heads after the other; a GGUF file all queries, then all keys, then all values."""

    qkv_names: ClassVar[Names]
    # The beginnings of names in a folder, by those that most architectures have.
    folder_names: ClassVar[Mapping[str, str]] = {}

    def leaves(self) -> tuple[Leaf, ...]:
        return tuple(leaf.renamed("safetensors", self.folder_name) for leaf in super().leaves())

    def folder_name(self, name: str) -> str:
        """The name of a tensor in a folder, from that which it has in most architectures."""
        names = self.folder_names.items()
        return next((new + name[len(old) :] for old, new in names if name.startswith(old)), name)

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        config, (folder, gguf) = self.config, self.qkv_names
        suffix, rest = ("bias", ()) if inputs is None else ("weight", (inputs,))
        sizes = (config.q_size, config.kv_size, config.kv_size)
        ends = (sizes[0], sizes[0] + sizes[1], sum(sizes))
        return tuple(
            Part(
                (size, *rest),
                {
                    "safetensors": Stored(f"model.layers.{{layer}}.{folder}.{suffix}", self.qkv_transform(index)),
                    "gguf": Stored(f"blk.{{layer}}.{gguf}.{suffix}", rows(end - size, end, ends[-1])),
                },
            )
            for index, (size, end) in enumerate(zip(sizes, ends, strict=True))
        )

    def qkv_transform(self, index: int) -> Transform:
        """Takes the queries (0), keys (1) or values (2) of a folder's tensor."""
        config = self.config
        shared = config.num_heads // config.num_kv_heads * config.head_dim
        return interleaved(config.num_kv_heads, (shared, config.head_dim, config.head_dim), (index,))
