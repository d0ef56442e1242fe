"""Safetensors files: where their tensors lie, and which files are refused."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from engine.interface.errors import ModelError
from engine.weights.formats.model_folder import ModelFolder
from engine.weights.formats.safetensors_files import PACKED_TYPES, SafetensorsFiles


def files_of(path: Path, tensors: dict[str, np.ndarray]) -> SafetensorsFiles:
    (path / "config.json").write_text("{}", encoding="utf-8")
    save_file(tensors, path / "model.safetensors")
    return SafetensorsFiles(ModelFolder(path))


def test_every_tensor_lies_where_the_library_put_it(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    types = (np.float32, np.int8, np.bool_, np.float64, np.uint16, np.int32, np.float16, np.int64, np.uint8, np.int16)
    tensors = {
        f"{dtype.__name__}{size}": random.integers(0, 100, size).astype(dtype)
        for dtype in types
        for size in ((3,), (2, 5), (0, 4), ())
    }
    files = files_of(tmp_path, tensors)
    assert files.names == tensors.keys()
    for name, values in tensors.items():
        if values.dtype in (np.float32, np.float16):
            tensor = files.tensor(name)
            assert tensor is not None
            assert tensor.shape == values.shape
            np.testing.assert_array_equal(tensor.float32(), values)
        elif values.dtype in PACKED_TYPES.values():
            np.testing.assert_array_equal(files.array(name, PACKED_TYPES), values)
        else:
            with pytest.raises(ModelError, match=r"is stored as .*; read are F32, F16, BF16"):
                files.tensor(name)


def test_a_file_that_is_cut_after_it_was_opened_is_an_error_of_its_reader(tmp_path: Path) -> None:
    """A mapped file would end the process with SIGBUS."""
    files = files_of(tmp_path, {"a": np.ones((1024, 1024), np.float32)})
    tensor = files.tensor("a")
    assert tensor is not None
    encoded = tensor.encoded()
    assert encoded is not None
    os.truncate(tmp_path / "model.safetensors", 4096)
    with pytest.raises(ModelError, match=r"model\.safetensors was cut short while it was read"):
        tensor.float32()
    with pytest.raises(ModelError, match=r"model\.safetensors was cut short while it was read"):
        encoded.read(512, 1024)


def header_of(tensors: object) -> bytes:
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header


@pytest.mark.parametrize(
    "data",
    [
        b"", b"1234567", struct.pack("<Q", 2**63), header_of([]) + bytes(8), struct.pack("<Q", 2) + b"{]",
        header_of({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}) + bytes(9),
        header_of({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}) + bytes(7),
        header_of({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}) + bytes(8),
        header_of({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}) + bytes(8),
        header_of({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}) + bytes(4),
        header_of({"a": {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}}) + bytes(8),
        header_of({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8]}}) + bytes(8),
        header_of({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8.0]}}) + bytes(8),
        header_of({"a": 5}) + bytes(8),
        header_of(
            {
                "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            }
        ) + bytes(4),
        struct.pack("<Q", 200_000) + b"[" * 200_000,
    ],
)  # fmt: skip
def test_a_damaged_header_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match=r"model\.safetensors is no safetensors file, or it is damaged or cut short"):
        SafetensorsFiles(ModelFolder(tmp_path))
    with pytest.raises(SafetensorError), safe_open(tmp_path / "model.safetensors", framework="numpy"):
        pass  # the library refuses it too


def test_a_header_that_would_hold_up_other_models_is_refused_unread(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", (32 << 20) + 1))
        file.truncate(48 << 20)
    with pytest.raises(ModelError, match=r"its header has 33554433 bytes, .* a header may have 33554432"):
        SafetensorsFiles(ModelFolder(tmp_path))
