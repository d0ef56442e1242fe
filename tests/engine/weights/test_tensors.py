"""Rows of matrices that a file has joined, and zeros behind a tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize

from engine.weights.formats.gguf_tensors import GGUFTensor, GGUFTensors
from engine.weights.packing import Format
from engine.weights.tensors import Padded, rows


@pytest.fixture
def joined(tmp_path: Path) -> GGUFTensor:
    """A quantised matrix of 12 outputs and 64 inputs."""
    weights = np.random.default_rng(0).standard_normal((12, 64)).astype(np.float32)
    writer = GGUFWriter(tmp_path / "joined.gguf", "test")
    kind = GGMLQuantizationType.Q8_0
    writer.add_tensor("joined", quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensor = GGUFTensors(tmp_path / "joined.gguf").tensor("joined")
    assert tensor is not None
    return tensor


def test_each_part_has_its_rows(joined: GGUFTensor) -> None:
    parts = [rows(0, 8, 12)(joined), rows(8, 12, 12)(joined)]
    assert [part.shape for part in parts] == [(8, 64), (4, 64)]
    assert sum(part.num_bytes for part in parts) == joined.num_bytes
    assert {(part.name, part.format) for part in parts} == {(joined.name, joined.format)}
    whole = dequantize(np.asarray(joined.stored.data), GGMLQuantizationType.Q8_0)
    assert np.array_equal(np.concatenate([part.float32() for part in parts]), whole)
    stored = np.asarray(joined.stored.data)
    for part, start in zip(parts, (0, 8), strict=True):
        encoded = part.encoded()
        assert encoded is not None
        assert (encoded.num_outputs, encoded.num_inputs) == part.shape
        read, order = encoded.rows(1, part.shape[0])
        assert np.array_equal(read if order is None else read[order], stored[start + 1 : start + part.shape[0]])


def test_a_matrix_of_another_size_shows_its_own_shape(joined: GGUFTensor) -> None:
    assert rows(0, 8, 16)(joined).shape == (12, 64)


def test_zeros_behind_each_axis(joined: GGUFTensor) -> None:
    padded = Padded(joined, (16, 96))
    assert padded.shape == (16, 96)
    expected = np.zeros((16, 96), np.float32)
    expected[:12, :64] = joined.float32()
    np.testing.assert_array_equal(padded.float32(), expected)
    assert padded.format is Format.BFLOAT16  # a row of integers cannot be made longer
    assert padded.encoded() is None
