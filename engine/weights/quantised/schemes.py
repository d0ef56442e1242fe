"""Quantisation schemes: reads the quantisation in a checkpoint's configuration, and chooses its matrices' readers."""

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

from engine.weights.formats.model_folder import JsonFile
from engine.weights.quantised import awq, compressed, float8, gptq
from engine.weights.quantised.awq import AwqIntegers
from engine.weights.quantised.compressed import ByteIntegers, PackedIntegers
from engine.weights.quantised.float8 import Float8Matrix
from engine.weights.quantised.gptq import GptqIntegers
from engine.weights.quantised.grouped_matrix import GroupedMatrix
from engine.weights.quantised.parts import Parts

FIELDS = ("quantization_config", "compression_config")  # the second by the first releases of compressed-tensors

Matrix = GroupedMatrix | Float8Matrix


@dataclass(frozen=True)
class Kind:
    """One way in which a module's matrix is stored."""

    marker: str  # a tensor of this name says that the module is quantised
    names: Set[str]  # of all tensors that replace the matrix
    make: Callable[[Parts], Matrix]


@dataclass(frozen=True)
class Scheme:
    """How the matrices of a folder are quantised; a module without the tensors of any kind is not."""

    label: str  # such as "gptq int4 g128"
    kinds: tuple[Kind, ...]
    has_mxfp4: bool = False  # whether tensors are stored as in quantised/mxfp4.py


def read_scheme(config: JsonFile) -> Scheme | None:
    """The scheme in `config.json`; None: the folder is not quantised. Raises ModelError if it is not supported."""
    field = next((name for name in FIELDS if config.value(name) is not None), None)
    table = None if field is None else config.table(field)
    if field is None or table is None:
        return None
    readers = {
        "awq": _read_awq, "gptq": _read_gptq, "fp8": _read_fp8, "compressed-tensors": _read_compressed,
        "mxfp4": _read_mxfp4,
    }  # fmt: skip
    # The first releases of compressed-tensors left its name out.
    method = table.text("quant_method") or ("compressed-tensors" if table.value("config_groups") else None)
    if method is None:
        raise table.missing("quant_method")
    if method not in readers:
        raise table.error("quant_method", f"quantised checkpoints are read of {', '.join(readers)}")
    return readers[method](table)


def _read_awq(table: JsonFile) -> Scheme:
    _only(table, "bits", 4, None)
    _only(table, "version", "gemm", "GEMM", None)
    _only(table, "zero_point", True, None)
    size = _group_size(table)
    return Scheme(
        f"awq int4{_of_groups(size)}",
        (Kind("qweight", awq.NAMES, lambda parts: GroupedMatrix(AwqIntegers(parts, size))),),
    )


def _read_gptq(table: JsonFile) -> Scheme:
    _only(table, "bits", 4, 8)
    _only(table, "checkpoint_format", "gptq", "gptq_v2", None)
    _only(table, "pack_dtype", "int32", None)
    _only(table, "is_marlin_format", False, None)
    dynamic = table.value("dynamic")
    # Modules that are not quantised are recognised by their tensors. Other numbers of bits are not supported.
    if dynamic and not (isinstance(dynamic, dict) and all(str(key).startswith("-:") for key in dynamic)):
        raise table.error("dynamic", "modules that are quantised in another way than the rest are not read")
    size, bits = _group_size(table), int(table.required_integer("bits", least=4, most=8))
    is_ordered = bool(table.flag("desc_act"))
    offset = 0 if table.value("checkpoint_format") == "gptq_v2" else 1

    def make(parts: Parts) -> Matrix:
        return GroupedMatrix(GptqIntegers(parts, bits=bits, group_size=size, is_ordered=is_ordered, zero_offset=offset))

    return Scheme(f"gptq int{bits}{_of_groups(size)}", (Kind("qweight", gptq.NAMES, make),))


def _read_fp8(table: JsonFile) -> Scheme:
    _only(table, "fmt", "e4m3", None)
    block = _block(table, "weight_block_size")
    label = "fp8" + ("" if not block else f" {block[0]}x{block[1]}")
    return Scheme(label, _float8_kinds(block))


def _read_mxfp4(table: JsonFile) -> Scheme:
    return Scheme("mxfp4", (), has_mxfp4=True)


def _read_compressed(table: JsonFile) -> Scheme:
    _only(table, "kv_cache_scheme", None)
    sparsity = table.table("sparsity_config")
    if sparsity is not None and sparsity.names:
        _only(sparsity, "format", "dense", None)
    groups = table.table("config_groups")
    if groups is None or not groups.names:
        raise table.missing("config_groups")
    labels, block = set[str](), tuple[int, ...]()
    for name in groups.names:
        group = groups.table(name)
        weights = None if group is None else group.table("weights")
        if group is None or weights is None:
            raise groups.error(name, "it must have weights that are quantised")
        for place in (table, group):
            _only(
                place, "format", "pack-quantized", "naive-quantized", "int-quantized", "float-quantized",
                *(("mixed-precision",) if place is table else ()), None,
            )  # fmt: skip
        label, of_group = _read_weights(weights)
        labels.add(label)
        block = of_group or block
    kinds = (
        Kind("weight_packed", compressed.PACKED_NAMES, lambda parts: GroupedMatrix(PackedIntegers(parts))),
        *_float8_kinds(block),
    )
    return Scheme("compressed-tensors " + "+".join(sorted(labels)), kinds)


def _read_weights(weights: JsonFile) -> tuple[str, tuple[int, ...]]:
    """A label for the weights of a group of compressed-tensors, and their blocks."""
    _only(weights, "type", "int", "float", None)
    is_float = weights.text("type") == "float"
    _only(weights, "num_bits", 8, *(() if is_float else (4,)))
    _only(weights, "strategy", "tensor", "channel", "group", "block" if is_float else None, None)
    _only(weights, "symmetric", True, *(() if is_float else (False,)), None)
    block = _block(weights, "block_structure")
    size = weights.integer("group_size", least=-1)
    name = "fp8" if is_float else f"int{weights.value('num_bits')}"
    return name + (f" {block[0]}x{block[1]}" if block else _of_groups(size or -1)), block


def _float8_kinds(block: tuple[int, ...]) -> tuple[Kind, ...]:
    def of_bytes(parts: Parts) -> Matrix:
        """Floats or integers of 8 bits, as they are stored."""
        if parts.kind_of("weight") == "I8":
            return GroupedMatrix(ByteIntegers(parts))
        return Float8Matrix(parts, "weight_scale", block)

    return (
        Kind("weight_scale_inv", float8.NAMES, lambda parts: Float8Matrix(parts, "weight_scale_inv", block)),
        Kind("weight_scale", compressed.BYTE_NAMES, of_bytes),
    )


def _only(table: JsonFile, key: str, *served: Any) -> None:
    """Raises ModelError if a field has none of the supported values; None is an absent one."""
    value = table.value(key)
    if not any(value == known and type(value) is type(known) for known in served):
        listed = " or ".join("absent" if known is None else repr(known).lower() for known in served)
        raise table.error(key, f"of quantised checkpoints it must be {listed}")


def _group_size(table: JsonFile) -> int:
    """Inputs that share a scale; -1: all. Raises ModelError if it is missing or wrong."""
    size = table.integer("group_size", least=-1)
    if size is None:
        raise table.missing("group_size")
    if size == 0:
        raise table.error("group_size", "it must be -1 or above 0")
    return size


def _block(table: JsonFile, key: str) -> tuple[int, ...]:
    """Outputs and inputs of a block; empty where there are none."""
    value = table.value(key)
    if value is None:
        return ()
    numbers = (
        isinstance(value, list) and len(value) == 2 and all(type(size) is int and 0 < size < 1 << 31 for size in value)
    )
    if not numbers:
        raise table.error(key, "it must be two integers above 0")
    return tuple(value)


def _of_groups(size: int) -> str:
    return "" if size == -1 else f" g{size}"
