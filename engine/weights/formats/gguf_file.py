"""A GGUF file, opened fast.

The reader of the `gguf` package makes a numpy view of each of the 100,000 strings of a vocabulary, which takes two
seconds; this one decodes arrays lazily, but for the lengths of their strings. Engine and server both read model files,
for weights and for the vocabulary, so this module is part of the interface between them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, GGUFValueType, ReaderField

from engine.interface.errors import ModelError
from engine.weights.formats.file_array import FileArray, ModelFile
from engine.weights.formats.gguf_strings import decode_strings, lengths_of_strings, size_of_strings

_ARRAY_HEADER_BYTES = 12  # item type, uint32, and count, uint64
MAX_HEADER_BYTES = 256 << 20  # vocabularies of today take from 1 to 15 MB
_READ_AHEAD_BYTES = 512 << 10

FieldValue = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]


class GGUFFile(GGUFReader):
    """`gguf.GGUFReader` with arrays decoded lazily, which refuses files that are cut short."""

    def __init__(self, path: Path) -> None:
        """Raises:
        ModelError: the file is no GGUF file, or it is damaged.
        OSError: the file cannot be read.
        """
        self._path = path
        self._file = ModelFile(path)
        self._header = np.empty(min(self._file.size, MAX_HEADER_BYTES), np.uint8)  # takes memory as it is filled
        self._num_read = 0
        self._are_fields_read = False
        try:
            with np.errstate(over="raise"):  # damaged sizes and offsets
                super().__init__(path)  # which maps the file, and reads by `_get` alone
        except (ValueError, IndexError, KeyError, TypeError, ArithmeticError) as error:
            # What the package raises for damage depends on where it falls.
            raise ModelError(f"{path} is no GGUF file, or it is damaged or cut short: {error}") from error
        del self.data

    def value(self, key: str) -> FieldValue | None:
        """The value of a field, or None where there is none; raises ModelError if a text in it is not UTF-8."""
        field = self.fields.get(key)
        if field is None:
            return None
        try:
            return self._decode(field)
        except UnicodeDecodeError as error:
            raise ModelError(f"{self._path} is damaged: the field {key} is not UTF-8: {error}") from error

    def _decode(self, field: ReaderField) -> FieldValue:
        if field.types[0] is not GGUFValueType.ARRAY:
            contents: FieldValue = field.contents()
            return contents
        if field.types[1] is GGUFValueType.STRING:
            return decode_strings(field.parts[-1], field.parts[-2])
        items: list[Any] = field.parts[-1].view(self._item_type(field.types[1])).tolist()
        return items

    def _item_type(self, kind: GGUFValueType) -> np.dtype[Any]:
        return np.dtype(self.gguf_scalar_to_np[kind]).newbyteorder("<")

    def _get(
        self, offset: int, dtype: npt.DTypeLike, count: int = 1, override_order: Literal["I", "S", "<"] | None = None
    ) -> npt.NDArray[Any]:
        """As in the package, which returns less than was requested where the file ends early.

        Tensors are not read yet: theirs are `FileArray`.
        """
        kind = np.dtype(dtype)
        end = offset + kind.itemsize * int(count)
        if end > self._file.size:
            raise ValueError(f"a value ends at byte {end} of {self._file.size}")
        order = self.byte_order if override_order is None else override_order
        if order != "I":
            kind = kind.newbyteorder(order)
        if self._are_fields_read:
            return cast(npt.NDArray[Any], FileArray(self._file, offset, kind, (int(count),)))
        self._read_up_to(end)
        return self._header[offset:end].view(kind)

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        self._are_fields_read = True
        super()._build_tensors(start_offs, fields)

    def _get_field_parts(
        self, orig_offs: int, raw_type: int
    ) -> tuple[int, list[npt.NDArray[Any]], list[int], list[GGUFValueType]]:
        """As in the package, but an array is one part with all of its bytes, behind the lengths of its strings."""
        if self.byte_order != "I":
            raise ValueError("its byte order is not this machine's, which is not supported")
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        item_type, count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
        kind, start = GGUFValueType(item_type[0]), orig_offs + _ARRAY_HEADER_BYTES
        parts: list[npt.NDArray[Any]] = [item_type, count]
        if kind is GGUFValueType.STRING:
            parts.append(self._lengths_of_strings(start, int(count[0])))
            size = size_of_strings(parts[-1])
        elif kind is GGUFValueType.ARRAY:
            raise ValueError("arrays of arrays are not supported")
        else:
            size = int(count[0]) * self._item_type(kind).itemsize
        parts.append(self._get(start, np.uint8, size))
        return _ARRAY_HEADER_BYTES + size, parts, [], [GGUFValueType.ARRAY, kind]

    def _lengths_of_strings(self, start: int, count: int) -> npt.NDArray[np.int64]:
        while True:
            try:
                return lengths_of_strings(self._header[: self._num_read], start, count)
            except ValueError:
                if self._num_read == self._file.size:
                    raise
            self._read_up_to(min(2 * self._num_read, self._file.size))

    def _read_up_to(self, end: int) -> None:
        """Reads what precedes the tensors; nothing says how long it is."""
        if end <= self._num_read:
            return
        if end > len(self._header):
            raise ValueError(f"its header is longer than {len(self._header)} bytes")
        stop = min(max(end, self._num_read + _READ_AHEAD_BYTES), len(self._header))
        self._header[self._num_read : stop] = self._file.read(self._num_read, stop)
        self._num_read = stop
