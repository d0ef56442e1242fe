"""The architecture of Jina Embeddings 3 (Sturua et al., "jina-embeddings-v3", 2024), without its adapters."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from engine.models.parts.encoders.encoder import Names
from engine.models.parts.encoders.encoder_config import EncoderConfig, read_activation, read_sizes_of_encoder
from engine.models.parts.encoders.rotary_encoder import GELU, RotaryEncoder, prefix_of
from engine.models.parts.folder_config import read_epsilon
from engine.models.parts.rotary_config import read_rotary
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf

_THETA = 20000.0
# Of a matrix as Jina published it, beside the pairs of its adapters for tasks.
_WEIGHT, _ORIGINAL = ".weight", ".parametrizations.weight.original"


@dataclass(frozen=True)
class JinaV3(RotaryEncoder):
    """XLM-RoBERTa with rotated queries and keys."""

    has_adapters: bool = False  # beside its matrices in the folder, which then have other names

    derived_tensors: ClassVar[re.Pattern[str]] = re.compile(
        RotaryEncoder.derived_tensors.pattern
        + r"|.*\.parametrizations\.weight\.0\.lora_[AB]|roberta\.pooler\.dense\.parametrizations\.weight\.original"
    )
    attention_name: ClassVar[str] = "mixer"
    gate_and_up: ClassVar[Sequence[Names]] = (("mlp.fc1", "ffn_up"),)
    of_gguf: ClassVar[dict[str, Any]] = GELU

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        sizes = read_sizes_of_encoder(config)
        if "rotary_emb_base" in config.names:
            config = config.with_values({"rope_theta": config.value("rotary_emb_base")})
        return cls(
            EncoderConfig(
                **sizes,
                layer_norm_eps=read_epsilon(config, "layer_norm_eps", 1e-5),
                activation=read_activation(config),
                num_token_types=config.integer("type_vocab_size", least=1) or 1,
                rotary=(read_rotary(config, sizes["head_dim"], sizes["context_length"], default_theta=_THETA),),
                tables=(0,) * sizes["num_layers"],
                prefix=prefix_of(tensor_names),
            ),
            has_adapters=any(name.endswith(_ORIGINAL) for name in tensor_names),
        )

    def leaves(self) -> tuple[Leaf, ...]:
        leaves = super().leaves()
        if not self.has_adapters:
            return leaves

        def published(name: str) -> str:
            return name.removesuffix(_WEIGHT) + _ORIGINAL

        # Its norms have no adapters.
        return tuple(leaf.renamed("safetensors", published) if _is_matrix(leaf) else leaf for leaf in leaves)


def _is_matrix(leaf: Leaf) -> bool:
    return len(leaf.parts[0].shape) > 1
