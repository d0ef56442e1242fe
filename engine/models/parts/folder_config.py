"""Reads the fields of `config.json` that several architectures share. Names: Hugging Face transformers."""

from collections.abc import Sequence, Set
from typing import TypedDict

from engine.interface.errors import ModelError
from engine.models.parts.decoder_config import DecoderConfig
from engine.models.parts.rotary import MAX_HEAD_DIM, Rotary
from engine.models.parts.rotary_config import read_rotary, read_rotary_dim, rope_tables, stretched_context
from engine.weights.formats.model_folder import JsonFile

OUTPUT = "lm_head.weight"
# So that a damaged configuration cannot ask for a huge list of tensors, or of parts of them.
MAX_NUM_LAYERS, MAX_NUM_HEADS = 10_000, 1 << 14


class Sizes(TypedDict):
    """The arguments of a `ModelConfig`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int


def read_sizes(config: JsonFile) -> Sizes:
    """The sizes, by the names that most architectures give them; raises ModelError."""
    hidden_size = config.required_integer("hidden_size", least=1)
    num_heads = config.required_integer("num_attention_heads", least=1, most=MAX_NUM_HEADS)
    num_kv_heads = config.integer("num_key_value_heads", least=1) or num_heads
    if num_heads % num_kv_heads:
        raise config.error("num_key_value_heads", f"it must divide num_attention_heads ({num_heads})")
    head_dim = config.integer("head_dim", least=1)
    if head_dim is None:
        if hidden_size % num_heads:
            raise config.error("num_attention_heads", f"it must divide hidden_size ({hidden_size})")
        head_dim = hidden_size // num_heads
    if head_dim > MAX_HEAD_DIM:
        raise ModelError(f"{config.path}: the head dimension is {head_dim}; it must be at most {MAX_HEAD_DIM}")
    if head_dim % 2:
        raise ModelError(f"{config.path}: the head dimension is {head_dim}; rotary embedding needs an even one")
    return Sizes(
        vocab_size=config.required_integer("vocab_size", least=1),
        hidden_size=hidden_size,
        intermediate_size=config.required_integer("intermediate_size", least=1),
        num_layers=config.required_integer("num_hidden_layers", least=1, most=MAX_NUM_LAYERS),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context_length=config.required_integer("max_position_embeddings", least=2),
    )


def read_epsilon(config: JsonFile, key: str, default: float) -> float:
    """The epsilon of a norm, rounded to float32 as in GGUF files, because converters write such values here too."""
    return float(f"{config.positive_number(key) or default:.6g}")


def read_decoder(
    config: JsonFile, tensor_names: Set[str], model_type: str, *,
    rotary: Rotary | None = None, is_tied: bool = False, default_theta: float = 10000.0,
    rotates_a_part: bool = False, hidden_act: str | tuple[str, ...] = "silu", epsilon_key: str = "rms_norm_eps",
    default_epsilon: float = 1e-6, output: str = OUTPUT,
) -> DecoderConfig:  # fmt: skip
    """The configuration of most models of the family, whose layers are all alike; raises ModelError.

    Args:
        rotary: the rotary embedding where the architecture reads it in its own way.
        is_tied, default_theta, default_epsilon: what holds where the configuration does not say.
        rotates_a_part: whether `partial_rotary_factor` may be below 1.
        output: the name of the matrix that makes logits.
        hidden_act: the only activation of the architecture, by its name in configurations, or by all its names.
    """
    if config.text("model_type") not in (None, model_type):
        raise config.error("model_type", f'of this architecture it must be "{model_type}"')
    hidden_acts = (hidden_act,) if isinstance(hidden_act, str) else hidden_act
    if config.text("hidden_act") not in (None, *hidden_acts):
        raise config.error("hidden_act", f'of this architecture it must be "{hidden_acts[0]}"')
    if config.value("per_layer_config"):
        raise config.error("per_layer_config", "layers with fields of their own are not served for this architecture")
    sizes = read_sizes(config)
    head_dim, context = sizes["head_dim"], sizes["context_length"]
    if rotary is None:
        if not rotates_a_part:
            refuse_partial_rotation(config)
        rotary = read_rotary(config, read_rotary_dim(config, head_dim), context, default_theta=default_theta)
    has_bias = read_flag(config, "attention_bias", False)
    sizes["context_length"] = max(context, stretched_context(config))
    return DecoderConfig(
        **sizes,
        rms_norm_eps=read_epsilon(config, epsilon_key, default_epsilon),
        rotary=(rotary,),
        tables=(0,) * sizes["num_layers"],
        windows=(0,) * sizes["num_layers"],
        attention_scale=head_dim**-0.5,
        # One that is stored is used, as in transformers.
        has_output=not read_flag(config, "tie_word_embeddings", is_tied) or output in tensor_names,
        has_qkv_bias=has_bias,
        has_attention_output_bias=has_bias,
        has_mlp_bias=read_flag(config, "mlp_bias", False),
    )


def refuse_partial_rotation(config: JsonFile) -> None:
    """Raises ModelError if the rotary embedding covers a part of the head."""
    for table in (config, *rope_tables(config)):
        if table.positive_number("partial_rotary_factor") not in (None, 1.0):
            raise table.error("partial_rotary_factor", "a rotary embedding over a part of the head is not served")


def read_flag(config: JsonFile, key: str, default: bool) -> bool:
    """A flag with a default."""
    flag = config.flag(key)
    return default if flag is None else flag


def read_windows(config: JsonFile, is_local: Sequence[bool], *, default: int | None = None) -> tuple[int, ...]:
    """The window of each layer in tokens, 0 for none; raises ModelError.

    `is_local` says which layers have one where `layer_types` does not, and `default` is the window where
    `sliding_window` is absent; null means that there is none.
    """
    window = config.integer("sliding_window", least=1) if "sliding_window" in config.names else default
    kinds = config.value("layer_types")
    if kinds is not None:
        known = ("sliding_attention", "full_attention")
        if not isinstance(kinds, list) or len(kinds) != len(is_local) or any(kind not in known for kind in kinds):
            raise config.error("layer_types", f"it must list {len(is_local)} times {known[0]!r} or {known[1]!r}")
        is_local = [kind == known[0] for kind in kinds]
        if window is None and any(is_local):
            raise config.missing("sliding_window")
    return tuple(window if window is not None and local else 0 for local in is_local)
