"""The configuration of decoders with latent attention, and how files state it."""

from collections.abc import Set
from dataclasses import dataclass, replace

from engine.models.parts import folder_config, gguf_config
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.experts import ExpertsConfig
from engine.models.parts.rotary import Rotary, yarn_magnitude
from engine.models.parts.rotary_config import kind_of, read_rotary, read_rotary_of_gguf, rope_tables
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

# Of the norms of latents, whatever a file says of the others; source: DeepSeek's code.
LATENT_EPSILON = 1e-6
MAX_LATENT = 8192  # features, so that a damaged size cannot reach far
_GGUF_WEIGHT = 0.1  # converters multiply `mscale_all_dim` by it


@dataclass(frozen=True, kw_only=True)
class LatentSizes:
    """The sizes of latent attention (DeepSeek-AI, "DeepSeek-V2", 2024)."""

    kv_rank: int  # features of the latent that keys and values are made of
    q_rank: int  # of that of queries; 0: queries are made of the hidden state
    rope_dim: int  # features of queries and keys that are rotated; all heads share those of keys
    nope_dim: int  # the others
    value_dim: int
    is_paired_in_folder: bool = True  # whether a folder has rotated features for a rotation of adjacent ones

    @property
    def page_dim(self) -> int:
        """Features of a token in the pages."""
        return self.rope_dim + self.kv_rank


@dataclass(frozen=True, kw_only=True)
class LatentConfig(ExpertsConfig):
    """A mixture's, in which `head_dim` is that of the pages, whose one head is the latent."""

    latent: LatentSizes

    @property
    def num_page_parts(self) -> int:
        return 1

    @property
    def product_inputs(self) -> dict[str, int]:
        """As `ModelConfig.product_inputs`."""
        inputs = {name: size for name, size in super().product_inputs.items() if name != "queries"}
        sizes = self.latent
        of_queries = {"latent of queries": sizes.q_rank} if sizes.q_rank else {}
        return {
            **inputs, **of_queries, "parts of keys": sizes.nope_dim, "latent": sizes.kv_rank,
            "values": self.num_heads * sizes.value_dim,
        }  # fmt: skip

    @property
    def joined_outputs(self) -> dict[str, int]:
        """As `ModelConfig.joined_outputs`."""
        sizes = self.latent
        queries = {"latent of queries": sizes.q_rank} if sizes.q_rank else {}
        return {**queries, "parts of queries": self.num_heads * sizes.nope_dim, "latent": sizes.kv_rank}


def read_folder(
    config: JsonFile, tensor_names: Set[str], model_type: str, *, rotary: Rotary | None = None
) -> tuple[DecoderConfig, LatentSizes]:
    """The part of a folder's configuration that all these models have; raises ModelError.

    `rotary` is the rotary embedding where the architecture reads it in its own way.
    """
    if folder_config.read_flag(config, "attention_bias", False):
        raise config.error("attention_bias", "biases are not served for this architecture")
    is_paired = folder_config.read_flag(config, "rope_interleave", True)
    sizes = LatentSizes(
        kv_rank=config.required_integer("kv_lora_rank", least=1, most=MAX_LATENT),
        q_rank=config.integer("q_lora_rank", least=1) or 0,
        rope_dim=config.required_integer("qk_rope_head_dim", least=2, most=MAX_LATENT),
        nope_dim=config.required_integer("qk_nope_head_dim", least=1),
        value_dim=config.required_integer("v_head_dim", least=1),
        is_paired_in_folder=is_paired,
    )
    if sizes.rope_dim % 2:
        raise config.error("qk_rope_head_dim", "it must be even")
    context = config.required_integer("max_position_embeddings", least=2)
    rotary = rotary or read_rotary(config, sizes.rope_dim, context)
    in_pages = {"head_dim": sizes.page_dim, "num_key_value_heads": 1}
    if sizes.page_dim % 2:
        raise config.error("kv_lora_rank", "it must be even")
    usual = folder_config.read_decoder(config.with_values(in_pages), tensor_names, model_type, rotary=rotary)
    weight, factor = 0.0, 1.0
    for table in rope_tables(config):
        if kind_of(table) not in ("default", "none"):
            weight = table.number("mscale_all_dim") or 0.0
            factor = table.positive_number("factor") or 1.0
    return _scaled(usual, sizes, yarn_magnitude(factor, weight)), sizes


def read_gguf(file: GGUFTensors, *, rotary: Rotary | None = None) -> tuple[DecoderConfig, LatentSizes]:
    """The same of a GGUF file; raises ModelError."""
    fields = file.fields
    rope_dim = fields.required_integer("rope.dimension_count", least=2, most=MAX_LATENT)
    # Early converters wrote the sizes of whole heads, as others still do under names of their own.
    key_dim = fields.integer("attention.key_length_mla") or fields.required_integer("attention.key_length", least=1)
    value_dim = fields.integer("attention.value_length_mla") or fields.integer("attention.value_length")
    if value_dim is None:  # as files of MiniCPM3, whose values are as wide as in other models
        num_heads = fields.required_integer("attention.head_count", least=1)
        value_dim = fields.required_integer("embedding_length", least=num_heads) // num_heads
    if rope_dim % 2 or rope_dim >= key_dim:
        raise fields.error("rope.dimension_count", f"it must be even and below {key_dim}")
    sizes = LatentSizes(
        kv_rank=fields.required_integer("attention.kv_lora_rank", least=1, most=MAX_LATENT),
        q_rank=gguf_config.read_count(file, "attention.q_lora_rank"),
        rope_dim=rope_dim,
        nope_dim=key_dim - rope_dim,
        value_dim=value_dim,
    )
    if sizes.page_dim % 2:
        raise fields.error("attention.kv_lora_rank", "it must be even")
    if rotary is None:
        usual, factor, weight = _read_usual(file, rope_dim)
    else:
        usual, factor, weight = gguf_config.read_decoder(file, rotary=rotary), 1.0, 1.0
    usual = replace(usual, head_dim=sizes.page_dim, num_kv_heads=1)
    return _scaled(usual, sizes, yarn_magnitude(factor, weight)), sizes


def _read_usual(file: GGUFTensors, rope_dim: int) -> tuple[DecoderConfig, float, float]:
    """The configuration without the scale of scores, and how much YaRN stretches and scales them."""
    fields = file.fields
    context = fields.required_integer("context_length", least=1)
    rotary = read_rotary_of_gguf(file, rope_dim, context)
    factor = weight = 1.0
    if fields.text("rope.scaling.type") == "yarn":
        factor = fields.positive_number("rope.scaling.factor") or 1.0
        stated = fields.positive_number("rope.scaling.yarn_log_multiplier")
        weight = 0.0 if stated is None else float(f"{stated / _GGUF_WEIGHT:.6g}")
        # In all of these models both weights of YaRN are the same, so that rotations keep their magnitude.
        if fields.value("rope.scaling.yarn_attn_factor") is None:
            rotary = Rotary(rotary.frequencies, yarn_magnitude(factor) if stated is None else 1.0)
    return gguf_config.read_decoder(file, rotary=rotary), factor, weight


def _scaled(usual: DecoderConfig, sizes: LatentSizes, magnitude: float) -> DecoderConfig:
    scale = (sizes.nope_dim + sizes.rope_dim) ** -0.5 * magnitude * magnitude
    return replace(usual, attention_scale=scale, has_qkv_bias=False, has_attention_output_bias=False)


def with_latents(routed: ExpertsConfig, sizes: LatentSizes) -> LatentConfig:
    """The configuration of a mixture with latent attention."""
    return LatentConfig(**vars(routed), latent=sizes)
