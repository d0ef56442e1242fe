"""A GGUF file, opened fast.

The reader of the `gguf` package makes a numpy view of each of the 100,000 strings of a vocabulary, which takes two
seconds; this one decodes arrays lazily, but for the lengths of their strings. Engine and server both read model files,
for weights and for the vocabulary, so this module is part of the interface between them.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gguf import GGUFReader, GGUFValueType, ReaderField

from engine.interface.errors import ModelError
from engine.interface.regular_file import open_regular
from engine.weights.formats.gguf_strings import decode_strings, lengths_of_strings, size_of_strings

_ARRAY_HEADER_BYTES = 12  # item type, uint32, and count, uint64

FieldValue = int | float | bool | str | list[int] | list[float] | list[bool] | list[str]


class GGUFFile(GGUFReader):
    """`gguf.GGUFReader` with arrays decoded lazily, which refuses files that are cut short."""

    def __init__(self, path: Path) -> None:
        """Raises:
        ModelError: the file is no GGUF file, or it is damaged.
        OSError: the file cannot be read.
        """
        self._path = path
        open_regular(path).close()  # the package would wait for what comes out of a named pipe
        try:
            with np.errstate(over="raise"):  # damaged sizes and offsets
                super().__init__(path)
        except (ValueError, IndexError, KeyError, TypeError, ArithmeticError) as error:
            # What the package raises for damage depends on where it falls.
            raise ModelError(f"{path} is no GGUF file, or it is damaged or cut short: {error}") from error

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
        """As in the package, which returns less than was requested where the file ends early."""
        kind = np.dtype(dtype)
        end = offset + kind.itemsize * int(count)
        self._check_end(end)
        order = self.byte_order if override_order is None else override_order
        return self._plain_data[offset:end].view(kind if order == "I" else kind.newbyteorder(order))

    @cached_property
    def _plain_data(self) -> npt.NDArray[np.uint8]:
        """The file as a plain ndarray: the package slices a subclass, which is slow."""
        return self.data.view(np.ndarray)

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
            parts.append(lengths_of_strings(self._plain_data, start, int(count[0])))
            size = size_of_strings(parts[-1])
        elif kind is GGUFValueType.ARRAY:
            raise ValueError("arrays of arrays are not supported")
        else:
            size = int(count[0]) * self._item_type(kind).itemsize
        parts.append(self._get(start, np.uint8, size))
        return _ARRAY_HEADER_BYTES + size, parts, [], [GGUFValueType.ARRAY, kind]

    def _check_end(self, end: int) -> None:
        if end > len(self.data):
            raise ValueError(f"a value ends at byte {end} of {len(self.data)}")
