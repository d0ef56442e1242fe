"""GGUF files: the same values as the package's own reader, and no patience for damage."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

from engine.interface.errors import ModelError
from engine.weights.formats import gguf_file
from engine.weights.formats.gguf_file import GGUFFile

SCALARS: list[tuple[str, Any, GGUFValueType]] = [
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
ARRAYS: list[tuple[str, list[Any], GGUFValueType]] = [
    ("integers", [1, -2, 3], GGUFValueType.INT32),
    ("bytes", [0, 255], GGUFValueType.UINT8),
    ("one", [7], GGUFValueType.UINT64),
    ("floats", [0.5, -1.25, 0.1], GGUFValueType.FLOAT32),
    ("flags", [True, False, True], GGUFValueType.BOOL),
    ("texts", ["", "é", "🌊 wave", "a" * 300], GGUFValueType.STRING),
    ("no_integers", [], GGUFValueType.INT32),
    ("no_texts", [], GGUFValueType.STRING),
]


CODES = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
    GGUFValueType.BOOL: "?",
}
TENSORS: dict[str, np.ndarray] = {
    "first": np.arange(6, dtype=np.float32).reshape(2, 3),
    "second": np.arange(8, dtype=np.float16),
}


def pack(value: Any, kind: GGUFValueType) -> bytes:
    """A value as the format stores it, without its type."""
    if kind is GGUFValueType.STRING:
        data: bytes = value.encode()
        return struct.pack("<Q", len(data)) + data
    return struct.pack("<" + CODES[kind], value)


def pack_fields() -> bytes:
    packed = b""
    for key, value, kind in SCALARS:
        packed += pack(key, GGUFValueType.STRING) + struct.pack("<I", kind) + pack(value, kind)
    for key, values, kind in ARRAYS:
        packed += pack(key, GGUFValueType.STRING) + struct.pack("<IIQ", GGUFValueType.ARRAY, kind, len(values))
        packed += b"".join(pack(item, kind) for item in values)
    return packed


def pack_file(*, with_tensors: bool) -> bytes:
    """Every type of value, and perhaps two tensors; not a byte behind what is needed."""
    num_tensors = len(TENSORS) if with_tensors else 0
    packed = b"GGUF" + struct.pack("<IQQ", 3, num_tensors, len(SCALARS) + len(ARRAYS)) + pack_fields()
    if not with_tensors:
        return packed
    for offset, (name, array) in zip((0, 32), TENSORS.items(), strict=True):
        kind = GGMLQuantizationType.F32 if array.dtype == np.float32 else GGMLQuantizationType.F16
        dimensions = struct.pack(f"<I{array.ndim}Q", array.ndim, *reversed(array.shape))
        packed += pack(name, GGUFValueType.STRING) + dimensions + struct.pack("<IQ", kind, offset)
    first, second = (array.tobytes() for array in TENSORS.values())
    return packed + b"\0" * (-len(packed) % 32) + first.ljust(32, b"\0") + second


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(pack_file(with_tensors=True))
    return path


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
        expected = np.asarray(value, np.float32).tolist() if kind is GGUFValueType.FLOAT32 else value
        assert file.value(key) == expected, key
    assert file.value("absent") is None


def test_tensors_are_those_of_the_packages_reader(path: Path) -> None:
    for ours, theirs in zip(GGUFFile(path).tensors, GGUFReader(path).tensors, strict=True):
        assert ours.name == theirs.name
        np.testing.assert_array_equal(ours.data, theirs.data)
        np.testing.assert_array_equal(ours.data, TENSORS[ours.name])


@pytest.mark.parametrize("with_tensors", [True, False])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, with_tensors: bool) -> None:
    whole, cut = pack_file(with_tensors=with_tensors), tmp_path / "cut.gguf"
    cut.write_bytes(whole)
    assert GGUFFile(cut).value("text") == "wave é 🌊"
    for length in range(len(whole)):
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf is no GGUF file, or it is damaged or cut short"):
            GGUFFile(cut)


def test_damage_is_refused_or_gives_values(tmp_path: Path) -> None:
    """Whatever byte is wrong: ModelError or some value, nothing else, and no loop over a number made of it."""
    whole, damaged = pack_file(with_tensors=True), tmp_path / "damaged.gguf"
    for position in range(len(whole)):
        damaged.write_bytes(whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])
        try:
            file = GGUFFile(damaged)
            for key in file.fields:
                file.value(key)
        except ModelError:
            continue


@pytest.mark.parametrize("count", [2**32, 2**62, 2**64 - 1])
@pytest.mark.parametrize("kind", [GGUFValueType.UINT8, GGUFValueType.FLOAT64, GGUFValueType.STRING])
def test_a_huge_count_is_refused_at_once(tmp_path: Path, count: int, kind: GGUFValueType) -> None:
    field = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", GGUFValueType.ARRAY, kind, count)
    for num_tensors, num_fields, rest in ((0, 1, field), (0, count, b""), (count, 0, b"")):
        path = tmp_path / "huge.gguf"
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_fields) + rest + b"\0" * 64)
        with pytest.raises(ModelError):
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
        with pytest.raises(ModelError, match=words):
            GGUFFile(path)


def test_a_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    field = struct.pack("<Q", 1) + b"k" + struct.pack("<I", GGUFValueType.STRING) + struct.pack("<Q", 1) + b"\xff"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field)
    with pytest.raises(ModelError, match="the field k is not UTF-8"):
        GGUFFile(path).value("k")


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        GGUFFile(tmp_path / "absent.gguf")


def test_a_header_of_many_megabytes_is_read_whole(tmp_path: Path) -> None:
    path, texts = tmp_path / "large.gguf", [f"{i:07}" * 20 for i in range(70_000)]
    writer = GGUFWriter(path, "llama")
    writer.add_array("texts", texts)
    writer.add_tensor("ones", np.ones(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(path)
    assert file.value("texts") == texts
    assert np.array_equal(np.asarray(file.tensors[0].data), np.ones(8))


def test_a_header_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the whole file is read into memory in search of its end."""
    monkeypatch.setattr(gguf_file, "MAX_HEADER_BYTES", 1024)
    path = tmp_path / "endless.gguf"
    field = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", GGUFValueType.ARRAY, GGUFValueType.STRING, 2**40)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field + struct.pack("<Q", 8) * 4096)
    with pytest.raises(ModelError, match="its header is longer than 1024 bytes"):
        GGUFFile(path)


def test_a_file_that_is_cut_after_it_was_opened_is_an_error_of_its_reader(path: Path) -> None:
    """A mapped file would end the process with SIGBUS."""
    file = GGUFFile(path)
    os.truncate(path, 16)
    assert file.value("text") == "wave é 🌊"
    for tensor in file.tensors:
        with pytest.raises(ModelError, match=r"tiny\.gguf was cut short while it was read"):
            np.asarray(tensor.data)
