"""GGUF files: the same values as the package's own reader, and no patience for damage."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter

from engine.gguf_file import GGUFFile, GGUFFileError

SCALARS = [
    ("uint8", 200, GGUFValueType.UINT8),
    ("int8", -100, GGUFValueType.INT8),
    ("uint16", 60_000, GGUFValueType.UINT16),
    ("int16", -30_000, GGUFValueType.INT16),
    ("uint32", 4_000_000_000, GGUFValueType.UINT32),
    ("int32", -2_000_000_000, GGUFValueType.INT32),
    ("float32", 0.1, GGUFValueType.FLOAT32),
    ("uint64", 2**63 + 1, GGUFValueType.UINT64),
    ("int64", -(2**62), GGUFValueType.INT64),
    ("float64", 0.1, GGUFValueType.FLOAT64),
    ("true", True, GGUFValueType.BOOL),
    ("false", False, GGUFValueType.BOOL),
    ("text", "wave é 🌊", GGUFValueType.STRING),
    ("empty_text", "", GGUFValueType.STRING),
]
ARRAYS = [
    ("integers", [1, -2, 3], GGUFValueType.INT32),
    ("bytes", [0, 255], GGUFValueType.UINT8),
    ("one", [7], GGUFValueType.UINT64),
    ("floats", [0.5, -1.25, 0.1], GGUFValueType.FLOAT32),
    ("flags", [True, False, True], GGUFValueType.BOOL),
    ("texts", ["", "é", "🌊 wave", "a" * 300], GGUFValueType.STRING),
    ("no_integers", [], GGUFValueType.INT32),
    ("no_texts", [], GGUFValueType.STRING),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every type of value, and two tensors."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    for key, value, kind in SCALARS:
        writer.add_key_value(key, value, kind)
    for key, values, kind in ARRAYS:
        writer.add_key_value(key, values, GGUFValueType.ARRAY, kind)
    writer.add_tensor("first", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("second", np.arange(8, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def without_tensors(path: Path) -> bytes:
    """Only the key-value part of the file, so that it ends within or behind the last value."""
    data = path.read_bytes()
    end = GGUFReader(path).tensors[0].field.offset
    return data[:8] + struct.pack("<Q", 0) + data[16:end]


def test_values_are_those_of_the_packages_reader(path: Path) -> None:
    ours, theirs = GGUFFile(path), GGUFReader(path)
    assert list(ours.fields) == list(theirs.fields)
    for key, field in theirs.fields.items():
        # That reader has no type for the items of an empty array, and fails on it.
        expected = [] if key.startswith("no_") else field.contents()
        assert ours.value(key) == expected, key
        assert type(ours.value(key)) is type(expected), key


def test_values_are_those_that_were_written(path: Path) -> None:
    file = GGUFFile(path)
    for key, value, kind in [*SCALARS, *ARRAYS]:
        expected = np.float32(value).tolist() if kind is GGUFValueType.FLOAT32 else value
        assert file.value(key) == expected, key
    assert file.value("general.architecture") == "llama"
    assert file.value("absent") is None


def test_tensors_are_those_of_the_packages_reader(path: Path) -> None:
    for ours, theirs in zip(GGUFFile(path).tensors, GGUFReader(path).tensors, strict=True):
        assert ours.name == theirs.name
        np.testing.assert_array_equal(ours.data, theirs.data)


def test_a_file_cut_anywhere_is_refused(path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    second = GGUFReader(path).tensors[1]
    # Behind the last tensor there is only padding.
    for whole in (path.read_bytes()[: second.data_offset + second.n_bytes], without_tensors(path)):
        cut.write_bytes(whole)
        assert GGUFFile(cut).value("text") == "wave é 🌊"
        for length in range(len(whole)):
            cut.write_bytes(whole[:length])
            with pytest.raises(GGUFFileError, match=r"cut\.gguf is no GGUF file, or it is damaged or cut short"):
                GGUFFile(cut)


def test_damage_is_refused_or_gives_values(path: Path, tmp_path: Path) -> None:
    """Whatever byte is wrong: GGUFFileError or some value, nothing else, and no loop over a number made of it."""
    whole, damaged = path.read_bytes(), tmp_path / "damaged.gguf"
    for position in range(len(whole)):
        for byte in (0x00, 0xFF):
            damaged.write_bytes(whole[:position] + bytes([byte]) + whole[position + 1 :])
            try:
                file = GGUFFile(damaged)
                for key in file.fields:
                    file.value(key)
            except GGUFFileError:
                continue


@pytest.mark.parametrize("count", [2**32, 2**62, 2**64 - 1])
@pytest.mark.parametrize("kind", [GGUFValueType.UINT8, GGUFValueType.FLOAT64, GGUFValueType.STRING])
def test_a_huge_count_is_refused_at_once(tmp_path: Path, count: int, kind: GGUFValueType) -> None:
    field = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", GGUFValueType.ARRAY, kind, count)
    for num_tensors, num_fields, rest in ((0, 1, field), (0, count, b""), (count, 0, b"")):
        path = tmp_path / "huge.gguf"
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_fields) + rest + b"\0" * 64)
        with pytest.raises(GGUFFileError):
            GGUFFile(path)


def test_other_versions_byte_orders_and_formats_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    field = struct.pack(">Q", 1) + b"k" + struct.pack(">II", GGUFValueType.UINT32, 5)
    for data, words in (
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 1) + field, "byte order"),
        (b"PK\x03\x04 and more", "magic"),
        (b"", "empty"),
    ):
        path.write_bytes(data)
        with pytest.raises(GGUFFileError, match=words):
            GGUFFile(path)


def test_a_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    field = struct.pack("<Q", 1) + b"k" + struct.pack("<I", GGUFValueType.STRING) + struct.pack("<Q", 1) + b"\xff"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field)
    with pytest.raises(GGUFFileError, match="the field k is not UTF-8"):
        GGUFFile(path).value("k")


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        GGUFFile(tmp_path / "absent.gguf")
