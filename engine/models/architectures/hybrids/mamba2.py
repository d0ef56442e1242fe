"""The Mamba-2 architecture (Dao and Gu, "Transformers are SSMs", 2024), also of Codestral Mamba; nothing attends."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import ClassVar, Self

from engine.interface.errors import ModelError
from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder import Names
from engine.models.parts.hybrids.hybrid_config import Block, HybridConfig
from engine.models.parts.hybrids.hybrid_decoder import HybridDecoder
from engine.models.parts.hybrids.mamba_sizes import MambaSizes, read_sizes, read_sizes_of_gguf
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile
from engine.weights.leaf import Leaf, with_folder_prefixes

# Of a request. The architecture has no limit, and files state none, or one that is made up.
_CONTEXT = 1 << 17


@dataclass(frozen=True)
class Mamba2(HybridDecoder):
    """State spaces alone, each behind a norm."""

    # Of a folder's tensors; it says nothing about the model itself.
    folder_prefix: str = field(default="", compare=False)

    block_norms: ClassVar[Mapping[Block, Names]] = {Block.MAMBA: ("norm", "attn_norm")}
    mamba_name = "mixer"
    model_type = "mamba2"
    is_tied: ClassVar[bool] = False  # where a configuration does not say

    @classmethod
    def from_folder(cls, config: JsonFile, tensor_names: Set[str]) -> Self:
        if config.text("model_type") not in (None, cls.model_type):
            raise config.error("model_type", f'of this architecture it must be "{cls.model_type}"')
        for key in ("hidden_act", "activation"):
            if config.text(key) not in (None, "silu"):
                raise config.error(key, 'of this architecture it must be "silu"')
        hidden = config.required_integer("hidden_size", least=1)
        mamba = cls.read_sizes(config, hidden)
        prefix = "model." if any(name.startswith("model.backbone.") for name in tensor_names) else ""
        is_tied = folder_config.read_flag(config, "tie_word_embeddings", cls.is_tied)
        made = _config(
            mamba, hidden_size=hidden, vocab_size=config.required_integer("vocab_size", least=1),
            num_layers=config.required_integer("num_hidden_layers", least=1, most=folder_config.MAX_NUM_LAYERS),
            epsilon=folder_config.read_epsilon(config, "layer_norm_epsilon", 1e-5),
            has_output=not is_tied or f"{prefix}{folder_config.OUTPUT}" in tensor_names,
        )  # fmt: skip
        return cls(made, folder_prefix=prefix)

    @classmethod
    def from_gguf(cls, file: GGUFTensors) -> Self:
        embedding = file.tensor(gguf_config.EMBEDDING)
        if embedding is None or len(embedding.shape) != 2 or not embedding.shape[0]:
            raise ModelError(f"the file has no matrix {gguf_config.EMBEDDING!r}")
        num_layers = file.fields.required_integer("block_count", least=1)
        if num_layers > len(file.names):
            raise ModelError(f"the file has {len(file.names)} tensors, too few for {num_layers} layers")
        made = _config(
            cls.read_sizes_of_gguf(file), hidden_size=file.fields.required_integer("embedding_length", least=1),
            vocab_size=embedding.shape[0], num_layers=num_layers,
            epsilon=gguf_config.read_epsilon(file, "attention.layer_norm_rms_epsilon"),
            has_output=gguf_config.OUTPUT in file.names,
        )  # fmt: skip
        return cls(made)

    @classmethod
    def read_sizes(cls, config: JsonFile, hidden_size: int) -> MambaSizes:
        """The sizes of state spaces in `config.json`; raises ModelError."""
        return read_sizes(
            config,
            value_size=(config.integer("expand", least=1, most=64) or 2) * hidden_size,
            num_heads=config.integer("num_heads", least=1) or 128,
            head_dim=config.integer("head_dim", least=1) or 64,
            num_groups=config.integer("n_groups", least=1) or 8,
            state_size=config.integer("state_size", least=1) or 128,
            kernel=config.integer("conv_kernel", least=1) or 4,
            has_convolution_bias=folder_config.read_flag(config, "use_conv_bias", True),
            has_projection_bias=folder_config.read_flag(config, "use_bias", False),
        )

    @classmethod
    def read_sizes_of_gguf(cls, file: GGUFTensors) -> MambaSizes:
        """The same in a GGUF file; raises ModelError."""
        return read_sizes_of_gguf(file, 0)

    def leaves(self) -> tuple[Leaf, ...]:
        """As `Decoder.leaves`, by the names that folders have for them."""
        prefix = self.folder_prefix
        names = {
            "model.layers.": f"{prefix}backbone.layers.",
            "model.embed_tokens.": f"{prefix}backbone.embeddings.",
            "model.norm.": f"{prefix}backbone.norm_f.",
            "lm_head.": f"{prefix}lm_head.",
        }
        return with_folder_prefixes(super().leaves(), names)


def _config(
    mamba: MambaSizes, *, hidden_size: int, vocab_size: int, num_layers: int, epsilon: float, has_output: bool
) -> HybridConfig:  # fmt: skip
    """The configuration; the sizes of attention, of which there is none, are small ones."""
    return HybridConfig(
        vocab_size=vocab_size, hidden_size=hidden_size, intermediate_size=mamba.value_size, num_layers=num_layers,
        num_heads=1, num_kv_heads=1, head_dim=16, context_length=_CONTEXT, rms_norm_eps=epsilon, rotary=(),
        tables=(), windows=(), attention_scale=1.0, has_output=has_output, mamba=mamba,
        blocks=((Block.MAMBA,),) * num_layers,
    )  # fmt: skip
