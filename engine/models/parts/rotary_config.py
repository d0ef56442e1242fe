"""Reads the scaling of a model's rotary embedding, from `config.json` and from GGUF files."""

import math
from collections.abc import Iterator, Sequence

from engine.interface.errors import ModelError
from engine.models.parts import rotary
from engine.models.parts.rotary import Rotary
from engine.weights.formats.gguf_tensors import GGUFTensors
from engine.weights.formats.model_folder import JsonFile

FACTORS = "rope_freqs.weight"  # what llama.cpp's converter makes of Llama 3.1's way

_ORIGINAL = "original_max_position_embeddings"
_SERVED = ("default", "linear", "llama3", "yarn", "dynamic")


def rope_tables(config: JsonFile) -> Iterator[JsonFile]:
    """`rope_scaling`, which transformers has called `rope_parameters` since version 5."""
    for name in ("rope_parameters", "rope_scaling"):
        table = config.table(name)
        if table is not None:
            yield table


def read_rotary(
    config: JsonFile, rotary_dim: int, context_length: int, *, default_theta: float = 10000.0,
    table: JsonFile | None = None,
) -> Rotary:  # fmt: skip
    """The rotary embedding, stretched as `rope_scaling` or `rope_parameters` says; raises ModelError.

    `table` stands for these two, where a model has one for each kind of layer.
    """
    tables = [table] if table is not None else list(rope_tables(config))
    fields = next((each for each in tables if kind_of(each) not in ("default", "none")), None)
    theta = read_theta(config, tables, default_theta)
    if fields is None:
        return rotary.plain(rotary_dim, theta)
    original = config.integer(_ORIGINAL, least=1)
    if original is not None and table is None:  # transformers takes the one that stands beside the table first
        fields = fields.with_values({_ORIGINAL: original})
    match kind_of(fields):
        case "linear":
            return rotary.divided(rotary_dim, theta, fields.required_positive_number("factor"))
        case "llama3":
            return _read_llama3(fields, rotary_dim, theta, context_length)
        case "yarn":
            return _read_yarn(fields, rotary_dim, theta, context_length)
        case "dynamic":  # stretches nothing up to `max_position_embeddings`, and longer contexts are not served
            return rotary.plain(rotary_dim, theta)
        case _:
            raise _unserved(fields)


def read_rotaries_of_kinds(
    config: JsonFile, head_dim: int, context_length: int, *,
    default_theta: float = 10000.0, local_theta: float | None = None,
) -> tuple[Rotary, Rotary]:  # fmt: skip
    """The rotary embeddings of layers without and with a window; raises ModelError.

    Since version 5 of transformers `rope_parameters` has both. Before, `rope_scaling` was that of layers without a
    window, and those with one had the base `local_theta`, or where that is None the same base.
    """
    tables = config.table("rope_parameters")
    theta = config.positive_number("rope_theta") or default_theta
    if tables is None:
        full = read_rotary(config, head_dim, context_length, default_theta=default_theta)
        return full, rotary.plain(head_dim, local_theta or theta)
    of_kinds = []
    for kind, of_kind in (("full_attention", theta), ("sliding_attention", local_theta or theta)):
        table = tables.table(kind)
        if table is None:
            raise tables.missing(kind)
        # A base that stands outside the table is that of the layers that see all.
        of_kinds.append(
            read_rotary(config, head_dim, context_length, table=table.with_defaults({"rope_theta": of_kind}))
        )
    return of_kinds[0], of_kinds[1]


def read_theta(config: JsonFile, tables: Sequence[JsonFile], default: float = 10000.0) -> float:
    """The base of the frequencies, from the tables of the rotary embedding or from `config` itself."""
    return next(filter(None, (each.positive_number("rope_theta") for each in (*tables, config))), default)


def read_rotary_dim(config: JsonFile, head_dim: int) -> int:
    """Features of a head that are rotated, the first ones; raises ModelError if `partial_rotary_factor` is wrong."""
    for table in (*rope_tables(config), config):
        factor = table.positive_number("partial_rotary_factor")
        if factor is not None:
            rotary_dim = int(head_dim * min(factor, 2.0))  # above 1 it is refused, however large
            if factor > 1 or rotary_dim % 2 or rotary_dim == 0:
                raise table.error("partial_rotary_factor", f"it must make an even part of {head_dim} features")
            return rotary_dim
    return head_dim


def stretched_context(config: JsonFile) -> int:
    """The context that YaRN reaches, which files do not always state; 0 where it is not given."""
    for fields in rope_tables(config):
        original = fields.integer(_ORIGINAL, least=1)
        if kind_of(fields) == "yarn" and original is not None:
            reached = original * fields.required_positive_number("factor")
            if math.isinf(reached):
                raise fields.error("factor", "no context is so long")
            return int(reached)
    return 0


def read_rotary_of_gguf(
    file: GGUFTensors, rotary_dim: int, context_length: int, *, base_key: str = "rope.freq_base",
    is_truncated: bool = True,
) -> Rotary:  # fmt: skip
    """The rotary embedding, stretched as the fields of `rope.scaling` say; raises ModelError.

    `is_truncated` is that of YaRN's ramp, which files do not state.
    """
    fields = file.fields
    theta = fields.positive_number(base_key) or 10000.0
    kind = fields.text("rope.scaling.type") or "none"
    factor = fields.positive_number("rope.scaling.factor") or 1.0
    if FACTORS in file.names:
        if kind not in ("none", "linear") or factor != 1.0:
            raise ModelError(f"rotary scaling of type {kind!r} beside the tensor {FACTORS!r} is not served")
        return rotary.divided(rotary_dim, theta, read_factors(file, FACTORS, rotary_dim))
    match kind:
        case "none":
            return rotary.plain(rotary_dim, theta)
        case "linear":
            return rotary.divided(rotary_dim, theta, factor)
        case "yarn":
            return _read_yarn_of_gguf(file, rotary_dim, theta, factor, context_length, is_truncated=is_truncated)
        case _:
            raise ModelError(f"rotary scaling of type {kind!r} is not served")


def read_rotary_dim_of_gguf(file: GGUFTensors, head_dim: int) -> int:
    """Features of a head that are rotated, the first ones; raises ModelError if that is no even part of it."""
    rotary_dim = file.fields.integer("rope.dimension_count") or head_dim
    if rotary_dim % 2 or rotary_dim > head_dim:
        raise file.fields.error("rope.dimension_count", f"it must be even and at most {head_dim}")
    return rotary_dim


def read_factors(file: GGUFTensors, name: str, rotary_dim: int) -> list[float]:
    """The divisors of the frequencies, rotary_dim / 2 numbers of a tensor; raises ModelError."""
    tensor = file.tensor(name)
    if tensor is None:
        raise ModelError(f"the file has no tensor {name!r}")
    if tensor.shape != (rotary_dim // 2,):
        raise ModelError(f"{name} has shape {tensor.shape}, expected {(rotary_dim // 2,)}")
    factors = tensor.float32()
    if not (factors > 0).all():
        raise ModelError(f"{name} has a factor that is not above 0")
    found: list[float] = factors.tolist()
    return found


def kind_of(table: JsonFile) -> str:
    """The type of scaling in a table."""
    return table.text("rope_type") or table.text("type") or "default"


def _unserved(table: JsonFile) -> ModelError:
    name = "rope_type" if table.text("rope_type") else "type"
    return table.error(name, f"rotary scaling is served of the types {', '.join(_SERVED)}")


def _read_llama3(fields: JsonFile, rotary_dim: int, theta: float, context_length: int) -> Rotary:
    low = fields.required_positive_number("low_freq_factor")
    high = fields.required_positive_number("high_freq_factor")
    if high <= low:
        raise fields.error("high_freq_factor", f"it must be above low_freq_factor ({low})")
    return rotary.llama3(
        rotary_dim, theta, factor=fields.required_positive_number("factor"), low_freq_factor=low, high_freq_factor=high,
        original_context=fields.integer(_ORIGINAL, least=1) or context_length,
    )  # fmt: skip


def _read_yarn(fields: JsonFile, rotary_dim: int, theta: float, context_length: int) -> Rotary:
    if theta <= 1:
        raise ModelError(f"{fields.path}: rope_theta is {theta}; for YaRN it must be above 1")
    factor = fields.required_positive_number("factor")
    magnitude = fields.positive_number("attention_factor")
    weights = fields.number("mscale") or 0.0, fields.number("mscale_all_dim") or 0.0
    if magnitude is None and all(weights):
        of_all, of_dimensions = (rotary.yarn_magnitude(factor, weight) for weight in weights)
        magnitude = of_all / of_dimensions
    return rotary.yarn(
        rotary_dim, theta, factor=factor,
        original_context=fields.integer(_ORIGINAL, least=1) or context_length,
        beta_fast=fields.positive_number("beta_fast") or 32.0, beta_slow=fields.positive_number("beta_slow") or 1.0,
        is_truncated=fields.flag("truncate") is not False, magnitude=magnitude,
    )  # fmt: skip


def _read_yarn_of_gguf(
    file: GGUFTensors, rotary_dim: int, theta: float, factor: float, context_length: int, *, is_truncated: bool
) -> Rotary:
    """The magnitude is as transformers has it where the file states one, else as llama.cpp computes it."""
    fields = file.fields
    if theta <= 1:
        raise ModelError(f"the base of the rotary frequencies is {theta}; for YaRN it must be above 1")
    if fields.positive_number("rope.scaling.yarn_ext_factor") not in (None, 1.0):
        raise fields.error("rope.scaling.yarn_ext_factor", "only 1 is served")
    weight = fields.positive_number("rope.scaling.yarn_log_multiplier")
    magnitude = fields.positive_number("rope.scaling.yarn_attn_factor")
    if magnitude is None:
        magnitude = rotary.yarn_magnitude(factor) / (1.0 if weight is None else rotary.yarn_magnitude(factor, weight))
    return rotary.yarn(
        rotary_dim, theta, factor=factor,
        original_context=fields.integer("rope.scaling.original_context_length") or context_length,
        beta_fast=fields.positive_number("rope.scaling.yarn_beta_fast") or 32.0,
        beta_slow=fields.positive_number("rope.scaling.yarn_beta_slow") or 1.0, is_truncated=is_truncated,
        magnitude=magnitude * (fields.positive_number("rope.scaling.attn_factor") or 1.0),
    )  # fmt: skip
