"""The Refact architecture (Small Magellanic Cloud AI, "Refact 1.6B", 2023)."""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from engine.models.architectures.gpt.folder_form import FOLDER_NAMES, LAYER_SIZES
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.alibi import with_alibi
from engine.models.parts.decoder import Decoder, Names, in_layers
from engine.models.parts.rotary import NO_ROTARY
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf, Part, Stored, with_folder_prefixes
from engine.weights.tensors import rows

# Where config.json says nothing; source: the maker's configuration class.
_DEFAULTS: dict[str, Any] = {"n_positions": 1024, "multi_query": True}
_SIZE_MULTIPLE = 256  # to which the sizes of feed-forward blocks are rounded up


@dataclass(frozen=True)
class Refact(Decoder):
    """Llama's layers with scores that fall with distance, and one head of keys."""

    norms: ClassVar[Mapping[str, Names]] = {"attention_norm": ("ln_1", "attn_norm"), "mlp_norm": ("ln_2", "ffn_norm")}
    output_norm_names: ClassVar[Names] = ("model.ln_f", "output_norm")
    attention_output_names: ClassVar[Names] = ("attn.c_proj", "attn_output")
    derived_tensors = re.compile(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)")

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        config = config.with_defaults(_DEFAULTS)
        hidden_size = config.required_integer("n_embd", least=1)
        inner = -(-int(8 * hidden_size / 3) // _SIZE_MULTIPLE) * _SIZE_MULTIPLE
        config = config.with_values({name: config.value(old) for name, old in LAYER_SIZES.items()})
        if config.flag("multi_query") is False:
            raise config.error("multi_query", "several heads of keys are not served for this architecture")
        usual = folder_config.read_decoder(
            config.with_values({"intermediate_size": inner, "num_key_value_heads": 1}), tensor_names, "gpt_refact",
            rotary=NO_ROTARY, epsilon_key="layer_norm_epsilon", default_epsilon=1e-5,
        )  # fmt: skip
        return cls(with_alibi(usual))

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        return cls(with_alibi(gguf_config.read_decoder(file, rotary=NO_ROTARY)))

    def leaves(self) -> tuple[Leaf, ...]:
        return with_folder_prefixes(super().leaves(), FOLDER_NAMES)

    def qkv_parts(self, inputs: int | None) -> tuple[Part, ...]:
        """A folder has keys and values in one matrix."""
        size = self.config.kv_size
        names = ("attn.q.weight", "attn.kv.weight", "attn.kv.weight")
        takes = (None, rows(0, size, 2 * size), rows(size, 2 * size, 2 * size))
        return tuple(
            _in_folder(part, f"model.layers.{{layer}}.{name}", take)
            for part, name, take in zip(super().qkv_parts(inputs), names, takes, strict=True)
        )

    def feed_forward_leaves(self) -> list[Leaf]:
        down = in_layers((self.config.hidden_size, self.config.intermediate_size), ("mlp.c_proj", "ffn_down"))
        leaves = super().feed_forward_leaves()
        return [replace(leaf, parts=(down,)) if leaf.name == "down" else leaf for leaf in leaves]

    def gate_up_parts(self, inputs: int | None) -> tuple[Part, ...]:
        """A folder has both in one matrix."""
        size = self.config.intermediate_size
        takes = (rows(0, size, 2 * size), rows(size, 2 * size, 2 * size))
        return tuple(
            _in_folder(part, "model.layers.{layer}.mlp.gate_up_proj.weight", take)
            for part, take in zip(super().gate_up_parts(inputs), takes, strict=True)
        )


def _in_folder(part: Part, name: str, transform: Any) -> Part:
    return replace(part, stored={**part.stored, "safetensors": Stored(name, transform)})
