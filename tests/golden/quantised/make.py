"""Writes the quantised goldens: packed tensors of tiny matrices, and the weights that other projects make of them.

Run where torch, transformers, safetensors, compressed-tensors (0.20) and auto-gptq (0.7.1) are installed:

    python tests/golden/quantised/make.py

Each file is named after a scheme. Its metadata has the `quantization_config`; beside the tensors of the module "m" it
holds `expected`, the weights float32[outputs, inputs]. The packing is written here by the layouts that the projects
publish; the weights come from their own code: AWQ through compressed-tensors' converter of AutoAWQ's checkpoints, GPTQ
from a product of AutoGPTQ's layer with the identity, the others from compressed-tensors' decompression. Their scales
are given as float32 numbers, so that the weights are not rounded.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear
from compressed_tensors.compressors.naive_quantized import FloatQuantizationCompressor, IntQuantizationCompressor
from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.entrypoints.convert.converters.fp8block_dequantizer import FP8BlockDequantizer
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from safetensors.torch import save_file

HERE = Path(__file__).parent
OUTPUTS, INPUTS = 32, 256
torch.manual_seed(0)


def save(name: str, config: dict, tensors: dict[str, torch.Tensor], expected: torch.Tensor) -> None:
    content = {f"m.{part}": tensor.contiguous() for part, tensor in tensors.items()}
    assert expected.dtype == torch.float32
    assert bool(torch.isfinite(expected).all())
    metadata = {"quantization_config": json.dumps(config)}
    save_file({**content, "expected": expected.contiguous()}, HERE / f"{name}.safetensors", metadata)


def words(numbers: torch.Tensor, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """int32[..., words] of numbers along the last axis, the first in the lowest bits, or in an order of eight."""
    in_word = 32 // bits
    grouped = numbers.reshape(*numbers.shape[:-1], -1, in_word).to(torch.int64)
    if order is not None:
        grouped = grouped[..., list(order)]
    packed = sum(grouped[..., i] << (bits * i) for i in range(in_word))
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)


def scales_of(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return (torch.rand(shape) * 0.02 + 0.003).to(dtype)


def awq(group: int) -> None:
    groups = INPUTS // group
    numbers = torch.randint(0, 16, (INPUTS, OUTPUTS))
    zeros = torch.randint(0, 16, (groups, OUTPUTS))
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    scales = scales_of(groups, OUTPUTS)
    tensors = {"qweight": words(numbers, 4, order), "qzeros": words(zeros, 4, order), "scales": scales}
    converter = AutoAWQConverter(group_size=group)
    weight, scale, zero = converter._convert_gemm_module(tensors["qweight"], scales.float(), tensors["qzeros"])
    expected = dequantize(weight, scale, zero, args=QuantizationArgs(num_bits=4, strategy="group", group_size=group))
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    save(f"awq_g{group}", config, tensors, expected)


def gptq(name: str, bits: int, group: int, *, symmetric: bool, ordered: bool = False, version: int = 1) -> None:
    size = INPUTS if group == -1 else group
    groups = INPUTS // size
    numbers = torch.randint(0, 1 << bits, (OUTPUTS, INPUTS))
    zeros = torch.randint(1, 1 << bits, (groups, OUTPUTS))
    if symmetric:
        zeros[:] = 1 << (bits - 1)
    g_idx = (torch.arange(INPUTS) // size).to(torch.int32)
    if ordered:
        g_idx = g_idx[torch.randperm(INPUTS)]
    scales = scales_of(groups, OUTPUTS)
    layer = QuantLinear(bits, group, INPUTS, OUTPUTS, False, weight_dtype=torch.float32)
    layer.qweight, layer.g_idx, layer.scales = words(numbers, bits).T.contiguous(), g_idx, scales.float()
    layer.qzeros = words(zeros - 1, bits)  # as version 1 has them
    expected = layer(torch.eye(INPUTS)).T
    stored = layer.qzeros if version == 1 else words(zeros, bits)
    tensors = {"qweight": layer.qweight, "qzeros": stored, "scales": scales, "g_idx": g_idx}
    config = {
        "quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": ordered, "sym": symmetric,
        "checkpoint_format": "gptq" if version == 1 else "gptq_v2",
    }  # fmt: skip
    save(name, config, tensors, expected)


def compressed_config(kind: str, weights: dict) -> dict:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": kind, "ignore": ["lm_head"], "kv_cache_scheme": None,
        "quantization_status": "compressed", "config_groups": {"group_0": group},
    }  # fmt: skip


def packed(name: str, bits: int, group: int | None, *, symmetric: bool, dtype: torch.dtype) -> None:
    groups = 1 if group is None else INPUTS // group
    least = -(1 << (bits - 1))
    numbers = torch.randint(least, -least, (OUTPUTS, INPUTS))
    zeros = torch.randint(least, -least, (OUTPUTS, groups))
    scales = scales_of(OUTPUTS, groups, dtype=dtype)
    tensors = {
        "weight_packed": words(numbers - least, bits), "weight_scale": scales,
        "weight_shape": torch.tensor([OUTPUTS, INPUTS]),
    }  # fmt: skip
    if not symmetric:
        tensors["weight_zero_point"] = words((zeros - least).T, bits).T.contiguous()
    weights = {
        "num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "channel" if group is None else "group",
        "group_size": group,
    }  # fmt: skip
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    given = {**tensors, "weight_scale": scales.float(), "weight_shape": torch.Size((OUTPUTS, INPUTS))}
    expected = PackedQuantizationCompressor.decompress(given, scheme)["weight"]
    save(name, compressed_config("pack-quantized", weights), tensors, expected)


def int8(name: str, *, symmetric: bool) -> None:
    numbers = torch.randint(-128, 128, (OUTPUTS, INPUTS)).to(torch.int8)
    scales = scales_of(OUTPUTS, 1, dtype=torch.bfloat16)
    tensors = {"weight": numbers, "weight_scale": scales}
    if not symmetric:
        tensors["weight_zero_point"] = torch.randint(-128, 128, (OUTPUTS, 1)).to(torch.int8)
    weights = {"num_bits": 8, "type": "int", "symmetric": symmetric, "strategy": "channel"}
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    expected = IntQuantizationCompressor.decompress({**tensors, "weight_scale": scales.float()}, scheme)["weight"]
    save(name, compressed_config("int-quantized", weights), tensors, expected)


def float8(name: str, strategy: str, scale_shape: tuple[int, ...]) -> None:
    numbers = torch.randn(OUTPUTS, INPUTS).mul(60).to(torch.float8_e4m3fn)
    scales = scales_of(*scale_shape, dtype=torch.float32)
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy}
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    tensors = {"weight": numbers, "weight_scale": scales}
    expected = FloatQuantizationCompressor.decompress(tensors, scheme)["weight"]
    save(name, compressed_config("float-quantized", weights), tensors, expected)


def float8_blocks() -> None:
    rows, columns, block = 144, 160, 128  # the last blocks are in part beyond the weights
    numbers = torch.randn(rows, columns).mul(60).to(torch.float8_e4m3fn)
    scales = scales_of(2, 2, dtype=torch.float32)
    converter = FP8BlockDequantizer(targets=["m"], weight_block_size=(block, block), dtype=torch.float32)
    done = converter.process({"m.weight": numbers, "m.weight_scale_inv": scales})
    config = {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [block, block],
    }  # fmt: skip
    save("fp8_blocks", config, {"weight": numbers, "weight_scale_inv": scales}, done["m.weight"])


for size in (32, 64, 128):
    awq(size)
gptq("gptq_4_symmetric", 4, 128, symmetric=True)
gptq("gptq_4_asymmetric", 4, 32, symmetric=False)
gptq("gptq_4_ordered", 4, 64, symmetric=True, ordered=True)
gptq("gptq_8_symmetric", 8, -1, symmetric=True)
gptq("gptq_8_asymmetric_v2", 8, 64, symmetric=False, version=2)
packed("packed_4_group", 4, 128, symmetric=True, dtype=torch.bfloat16)
packed("packed_4_zero_points", 4, 32, symmetric=False, dtype=torch.float16)
packed("packed_4_float32_scales", 4, 64, symmetric=True, dtype=torch.float32)
packed("packed_8_channel", 8, None, symmetric=True, dtype=torch.float16)
packed("packed_8_zero_points", 8, 64, symmetric=False, dtype=torch.bfloat16)
int8("int8_channel", symmetric=True)
int8("int8_zero_points", symmetric=False)
float8("fp8_tensor", "tensor", (1,))
float8("fp8_channel", "channel", (OUTPUTS, 1))
float8_blocks()
