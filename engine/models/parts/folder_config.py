"""Reads what `config.json` says in the same way for several architectures. Names: Hugging Face transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

from engine.border.errors import ModelError
from engine.weights.formats.model_folder import JsonFile

MAX_NUM_LAYERS = 10_000  # so that a damaged configuration cannot ask for a huge list of tensor names


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
    """The sizes, by the names that most architectures give them.

    Raises:
        ModelError: one is missing or wrong, or they contradict each other.
    """
    hidden_size = config.required_integer("hidden_size", least=1)
    num_heads = config.required_integer("num_attention_heads", least=1)
    num_kv_heads = config.integer("num_key_value_heads", least=1) or num_heads
    if num_heads % num_kv_heads:
        raise config.error("num_key_value_heads", f"it must divide num_attention_heads ({num_heads})")
    head_dim = config.integer("head_dim", least=1)
    if head_dim is None:
        if hidden_size % num_heads:
            raise config.error("num_attention_heads", f"it must divide hidden_size ({hidden_size})")
        head_dim = hidden_size // num_heads
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
    """The epsilon of a norm.

    It is rounded as that of a GGUF file, in which 1e-5 has been a float32; converters leave such values here too.
    """
    return float(f"{config.positive_number(key) or default:.6g}")


def rope_tables(config: JsonFile) -> Iterator[JsonFile]:
    """`rope_scaling`, which transformers has called `rope_parameters` since version 5."""
    for name in ("rope_parameters", "rope_scaling"):
        table = config.table(name)
        if table is not None:
            yield table


def read_rope_theta(config: JsonFile) -> float:
    """The base of the rotary embedding's frequencies."""
    for table in (*rope_tables(config), config):
        theta = table.positive_number("rope_theta")
        if theta is not None:
            return theta
    return 10000.0


def refuse_quantised(config: JsonFile) -> None:
    """
    Raises:
        ModelError: the checkpoint is quantised.
    """
    for name in ("quantization_config", "compression_config"):
        if config.value(name) is not None:
            raise config.error(name, "quantised checkpoints are not read; F32, F16 and BF16 are")


def refuse_other_rotations(config: JsonFile) -> None:
    """
    Raises:
        ModelError: the rotary embedding is scaled, or covers a part of the head.
    """
    for table in (config, *rope_tables(config)):
        if table.positive_number("partial_rotary_factor") not in (None, 1.0):
            raise table.error("partial_rotary_factor", "a rotary embedding over a part of the head is not served")
    for table in rope_tables(config):
        for name in ("rope_type", "type"):
            if table.text(name) not in (None, "default", "none"):
                raise table.error(name, "rotary scaling is not served")
