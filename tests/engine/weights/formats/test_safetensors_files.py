"""Safetensors files: where their tensors lie, and that their pages are given back."""

import mmap
from pathlib import Path

import numpy as np
import pytest
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


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not tell how much is resident")
def test_pages_are_given_back(tmp_path: Path) -> None:
    """Of a file that was read, as floats and as rows, no more stays than the pages at its edges."""
    files = files_of(tmp_path, {name: np.ones((1024, 1024), np.float32) for name in ("a", "b")})
    first, second = files.tensor("a"), files.tensor("b")
    assert first is not None
    assert second is not None
    first.float32()
    encoded = second.encoded()
    assert encoded is not None
    for start in range(0, 1024, 256):
        rows = encoded.read(start, start + 256)
        assert rows.sum() > 0
        assert resident_bytes(tmp_path) >= rows.nbytes
        encoded.forget(rows)
    assert resident_bytes(tmp_path) <= 16 * mmap.PAGESIZE


def resident_bytes(folder: Path) -> int:
    """Of the maps of a folder's files."""
    total, is_ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0] and not line.split(" ")[0].endswith(":"):
            is_ours = str(folder) in line
        elif is_ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total
