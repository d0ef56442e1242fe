"""LongRoPE: a rotary embedding with factors for short and for long contexts (Ding et al., "LongRoPE", 2024)."""

import math
from dataclasses import dataclass

from engine.models.parts import rotary
from engine.models.parts.rotary import Rotary
from engine.models.parts.rotary_config import (
    kind_of,
    read_factors,
    read_rotary,
    read_rotary_dim,
    read_rotary_dim_of_gguf,
    read_rotary_of_gguf,
    read_theta,
    rope_tables,
)
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
_DEFAULT_ORIGINAL = 4096  # tokens; of transformers' class, where a configuration leaves it out


@dataclass(frozen=True)
class LongRope:
    """Two tables of angles, of which a served context uses one."""

    short: Rotary
    long: Rotary
    original_context: int  # tokens; a longer context takes the long one

    def of(self, num_tokens: int) -> Rotary:
        """The table for the longest context that is served, as in vLLM and llama.cpp.

        It cannot be chosen for each request: keys that are written with one table cannot be read with the other.
        """
        return self.long if num_tokens > self.original_context else self.short


def read_longrope(config: JsonFile, head_dim: int, context_length: int) -> tuple[Rotary, LongRope | None]:
    """The rotary embedding of short contexts, and both tables where there are two; raises ModelError."""
    tables = list(rope_tables(config))
    rotary_dim = read_rotary_dim(config, head_dim)
    # The first releases of Phi-3 named it "su" and "yarn", which it is not.
    fields = next((table for table in tables if kind_of(table) in ("longrope", "su", "yarn")), None)
    if fields is None:
        return read_rotary(config, rotary_dim, context_length), None
    theta, key = read_theta(config, tables), "original_max_position_embeddings"
    original = config.integer(key, least=2) or fields.integer(key, least=2) or _DEFAULT_ORIGINAL
    factor = fields.positive_number("factor") or context_length / original
    magnitude = fields.positive_number("attention_factor") or rotary.longrope_magnitude(factor, original)
    short, long = (
        rotary.divided(rotary_dim, theta, _read_list(fields, key, rotary_dim // 2), magnitude)
        for key in ("short_factor", "long_factor")
    )
    return short, LongRope(short, long, original)


def read_longrope_of_gguf(file: GGUFTensors, head_dim: int, context_length: int) -> tuple[Rotary, LongRope | None]:
    """As `read_longrope`, from the tensors of factors."""
    fields = file.fields
    rotary_dim = read_rotary_dim_of_gguf(file, head_dim)
    if not file.names & {_LONG, _SHORT}:
        return read_rotary_of_gguf(file, rotary_dim, context_length), None
    theta = fields.positive_number("rope.freq_base") or 10000.0
    magnitude = fields.positive_number("rope.scaling.attn_factor") or 1.0
    short, long = (
        rotary.divided(rotary_dim, theta, read_factors(file, name, rotary_dim), magnitude) for name in (_SHORT, _LONG)
    )
    original = fields.integer("rope.scaling.original_context_length") or context_length
    return short, LongRope(short, long, original)


def _read_list(fields: JsonFile, key: str, length: int) -> list[float]:
    values = fields.value(key)
    if values is None:
        raise fields.missing(key)
    if not isinstance(values, list) or len(values) != length or not all(map(_is_positive, values)):
        raise fields.error(key, f"it must list {length} numbers above 0")
    return [float(value) for value in values]


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
