"""Every scheme of quantised checkpoints, against the weights that the projects' own code makes of the same tensors."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open

from engine.backends.native.packer import pack_encoded
from engine.interface.errors import ModelError
from engine.weights.formats.model_folder import ModelFolder
from engine.weights.formats.safetensors_files import SafetensorsFiles
from engine.weights.packing import TILE, Format
from engine.weights.quantised.folder_tensors import FolderTensors
from tests.packed_blocks import unpack

GOLDEN = Path(__file__).parents[3] / "golden" / "quantised"
# What the packed formats hold exactly stays as small as it is; the others become bfloat16.
FORMATS = {
    "awq_g32": ("awq int4 g32", Format.INT4_ZERO),
    "awq_g64": ("awq int4 g64", Format.INT4_ZERO),
    "awq_g128": ("awq int4 g128", Format.INT4_ZERO),
    "gptq_4_symmetric": ("gptq int4 g128", Format.INT4),
    "gptq_4_asymmetric": ("gptq int4 g32", Format.INT4_ZERO),
    "gptq_4_ordered": ("gptq int4 g64", Format.BFLOAT16),  # neighbours have scales of several groups
    "gptq_8_symmetric": ("gptq int8", Format.INT8),
    "gptq_8_asymmetric_v2": ("gptq int8 g64", Format.INT8_ZERO),
    "packed_4_group": ("compressed-tensors int4 g128", Format.INT4),
    "packed_4_zero_points": ("compressed-tensors int4 g32", Format.INT4_ZERO),
    "packed_4_float32_scales": ("compressed-tensors int4 g64", Format.BFLOAT16),  # beyond float16
    "packed_8_channel": ("compressed-tensors int8", Format.INT8),
    "packed_8_zero_points": ("compressed-tensors int8 g64", Format.INT8_ZERO),
    "int8_channel": ("compressed-tensors int8", Format.INT8),
    "int8_zero_points": ("compressed-tensors int8", Format.INT8_ZERO),
    "fp8_tensor": ("compressed-tensors fp8", Format.BFLOAT16),
    "fp8_channel": ("compressed-tensors fp8", Format.BFLOAT16),
    "fp8_blocks": ("fp8 128x128", Format.BFLOAT16),
}


def config_of(name: str) -> dict[str, Any]:
    with safe_open(GOLDEN / f"{name}.safetensors", framework="numpy") as file:
        config: dict[str, Any] = json.loads(file.metadata()["quantization_config"])
    return config


def folder_of(path: Path, name: str, config: dict[str, Any] | None = None, content: bytes | None = None) -> Path:
    """The tensors of a golden as a model folder, whose configuration says no more than how they are quantised."""
    path.mkdir(parents=True, exist_ok=True)
    stated = config_of(name) if config is None else config
    (path / "config.json").write_text(json.dumps({"quantization_config": stated}), encoding="utf-8")
    stored = (GOLDEN / f"{name}.safetensors").read_bytes() if content is None else content
    (path / "model.safetensors").write_bytes(stored)
    return path


def tensors_of(path: Path) -> FolderTensors:
    folder = ModelFolder(path)
    return FolderTensors(folder.config, SafetensorsFiles(folder))


def test_every_golden_is_compared() -> None:
    assert {path.stem for path in GOLDEN.glob("*.safetensors")} == FORMATS.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_those_of_the_reference(tmp_path: Path, name: str) -> None:
    files = tensors_of(folder_of(tmp_path, name))
    assert files.names == {"m.weight", "expected"}
    tensor, reference = files.tensor("m.weight"), files.tensor("expected")
    assert tensor is not None
    assert reference is not None
    expected = reference.float32()
    assert (files.quantization, tensor.format) == FORMATS[name]
    assert tensor.shape == expected.shape
    np.testing.assert_array_equal(tensor.float32(), expected)

    encoded = tensor.encoded()
    assert encoded is not None
    tiles = np.zeros((-(-len(expected) // TILE), tensor.format.tile_bytes(expected.shape[1])), np.uint8)
    for start in range(0, len(expected), TILE):  # in pieces, as the loader's jobs do it
        stop = min(start + TILE, len(expected))
        pack_encoded(encoded, tensor.format, tiles[start // TILE :], start, stop)
    got = unpack(tiles, tensor.format)[: len(expected)]
    rounded = expected.astype(jnp.bfloat16).astype(np.float32) if tensor.format is Format.BFLOAT16 else expected
    np.testing.assert_array_equal(got, rounded)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("awq_g32", {"quant_method": "bitsandbytes"}, 'quant_method is "bitsandbytes"; .* read of awq, gptq, fp8, '),
        ("awq_g32", {"quant_method": None}, "lacks quant_method"),
        ("awq_g32", {"version": "gemv"}, "version is \"gemv\"; of quantised checkpoints it must be 'gemm'"),
        ("awq_g32", {"bits": 3}, "bits is 3; .* it must be 4"),
        ("awq_g32", {"group_size": 0}, "group_size is 0; it must be -1 or above 0"),
        ("awq_g32", {"group_size": None}, "lacks group_size"),
        ("awq_g32", {"group_size": 64}, r"m.scales has shape \(8, 32\), expected \(4, 32\)"),
        ("gptq_4_symmetric", {"bits": 2}, "bits is 2"),
        ("gptq_4_symmetric", {"bits": 8}, r"m.scales has shape \(2, 32\), expected \(1, 32\)"),
        ("gptq_4_symmetric", {"checkpoint_format": "marlin"}, 'checkpoint_format is "marlin"'),
        ("gptq_4_symmetric", {"dynamic": {"+:m": {"bits": 8}}}, "dynamic is .*modules that are quantised in another"),
        ("gptq_4_ordered", {"desc_act": False}, "m.g_idx orders the inputs, although desc_act is false"),
        ("packed_4_group", {"format": "marlin-24"}, "format is \"marlin-24\"; .* 'pack-quantized' or"),
        ("packed_4_group", {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme is"),
        ("packed_4_group", {"config_groups": {}}, "lacks config_groups"),
        ("packed_4_group", {"config_groups": {"a": {"weights": {"num_bits": 4, "type": "float"}}}}, "num_bits is 4"),
        ("packed_4_group", {"config_groups": {"a": {}}}, "a is {}; it must have weights"),
        ("packed_4_group", {"sparsity_config": {"format": "sparse-bitmask"}}, 'format is "sparse-bitmask"'),
        ("fp8_blocks", {"fmt": "e5m2"}, 'fmt is "e5m2"'),
        ("fp8_blocks", {"weight_block_size": [128]}, r"weight_block_size is \[128\]; it must be two integers"),
        ("fp8_blocks", {"weight_block_size": [64, 128]}, r"m.weight_scale_inv has shape \(2, 2\), .* \[64, 128\]"),
        ("fp8_blocks", {"quant_method": "awq", "bits": 4, "group_size": 32}, "but no tensor is"),
    ],
)
def test_what_is_not_served_is_refused_by_its_field(
    tmp_path: Path, name: str, change: dict[str, Any], words: str
) -> None:
    config = {key: value for key, value in {**config_of(name), **change}.items() if value is not None}
    folder_of(tmp_path, name, config)
    with pytest.raises(ModelError, match=words):
        read_all(tmp_path)


def test_a_matrix_that_was_left_as_it_is_needs_no_list(tmp_path: Path) -> None:
    """`expected` is a tensor of floats in a folder that says it is quantised."""
    tensor = tensors_of(folder_of(tmp_path, "awq_g32")).tensor("expected")
    assert tensor is not None
    assert tensor.format is Format.BFLOAT16


@pytest.mark.parametrize("name", ["awq_g128", "gptq_4_ordered", "packed_8_zero_points", "fp8_channel"])
def test_damaged_files_are_refused_or_read(tmp_path: Path, name: str) -> None:
    """A changed byte or a file cut short gives a ModelError or other weights, and nothing else."""
    content = (GOLDEN / f"{name}.safetensors").read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    dice = random.Random(name)
    refused = 0
    for number in range(60):
        damaged = bytearray(content)
        if number % 4 == 0:
            del damaged[dice.randrange(len(content)) :]
        else:
            for _ in range(dice.randint(1, 3)):
                damaged[dice.randrange(header)] = dice.choice(b'\x00\xff"{}[],:019IFU')
        try:
            read_all(folder_of(tmp_path, name, content=bytes(damaged)))
        except ModelError:
            refused += 1
    assert refused > 30


@pytest.mark.parametrize("name", ["awq_g128", "gptq_4_ordered", "packed_4_zero_points", "fp8_blocks"])
def test_any_configuration_is_refused_or_read(tmp_path: Path, name: str) -> None:
    odd = [None, True, 0, -1, 1 << 40, 1.5, "", "x", [], [1, 2], {}, {"a": None}, float("inf")]
    config = config_of(name)
    for key in config:
        for value in odd:
            folder_of(tmp_path, name, {**config, key: value})
            with suppress(ModelError):
                read_all(tmp_path)


def read_all(path: Path) -> None:
    files = tensors_of(path)
    for name in files.names:
        tensor = files.tensor(name)
        assert tensor is not None
        assert tensor.format in Format
        encoded = tensor.encoded()
        if encoded is not None:
            encoded.read(0, min(16, encoded.num_outputs))
