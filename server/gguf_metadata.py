"""What the text side needs to know from a GGUF file: names, limits, vocabulary, chat template.

Only the header is read, and by this module rather than by `gguf.GGUFReader`: that makes a numpy
view of each of the 100,000 strings of a vocabulary, which takes seconds where this takes a tenth
of one. The format is specified at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, TypeVar

MAGIC: Final = b"GGUF"
SUPPORTED_VERSIONS: Final = (2, 3)
STRING: Final = 8
ARRAY: Final = 9
# Value type number -> struct code, little-endian.
SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

Scalar = int | float | bool | str
Value = Scalar | list[Scalar]
T = TypeVar("T")


class GgufError(ValueError):
    """The file is no GGUF, is damaged, or lacks something that the server needs."""


class TokenType(IntEnum):
    """The numbers of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class GgufMetadata:
    """The text side's view of a GGUF file. Lists of the vocabulary are indexed by token id."""

    architecture: str
    name: str | None  # what the file calls the model
    context_length: int  # tokens the model was trained for
    tokenizer_model: str  # "gpt2": byte-level BPE; "llama": SentencePiece
    tokenizer_pre: str  # the pre-tokeniser's name
    tokens: tuple[str, ...]
    token_types: tuple[int, ...]  # see TokenType
    scores: tuple[float, ...]  # of SentencePiece vocabularies, else empty
    merges: tuple[str, ...]  # of byte-level BPE vocabularies, else empty; "left right", best first
    bos_token_id: int | None
    eos_token_id: int | None
    eot_token_id: int | None  # ends a turn
    eom_token_id: int | None  # ends a message that waits for a tool's answer
    add_bos_token: bool | None  # None: the file leaves it to the tokenizer's kind
    add_space_prefix: bool | None  # None: likewise
    chat_template: str | None


def read_gguf_metadata(path: Path) -> GgufMetadata:
    """Reads the header of the GGUF file at `path`.

    Raises:
        GgufError: not a GGUF file of a supported version, damaged, or a needed field is missing.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise GgufError(f"{path} is no GGUF file: it does not begin with {MAGIC!r}")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                fields = _HeaderReader(data).read()
            except (struct.error, UnicodeDecodeError) as error:
                raise GgufError(f"{path} is damaged or cut short: {error}") from error
            except GgufError as error:
                raise GgufError(f"{path}: {error}") from None
    return _metadata_of(_Fields(path, fields))


class _HeaderReader:
    """A cursor over the key-value part of the header."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._offset = len(MAGIC)

    def read(self) -> dict[str, Value]:
        version = self._unpack("I")
        if version not in SUPPORTED_VERSIONS:
            raise GgufError(f"GGUF version {version} is not supported (versions {SUPPORTED_VERSIONS} are)")
        self._unpack("Q")  # the number of tensors
        num_fields = self._unpack("Q")
        return {self._string(): self._value() for _ in range(num_fields)}

    def _unpack(self, code: str) -> int:
        (value,) = struct.unpack_from("<" + code, self._data, self._offset)
        self._offset += struct.calcsize("<" + code)
        return int(value)

    def _string(self) -> str:
        return self._strings(1)[0]

    def _strings(self, count: int) -> list[str]:
        # The hot loop of the header: local names, no call but the two that do the work.
        data, offset, strings = self._data, self._offset, list[str]()
        unpack_length = struct.Struct("<Q").unpack_from
        for _ in range(count):
            start = offset + 8
            offset = start + unpack_length(data, offset)[0]
            if offset > len(data):
                raise struct.error("a string reaches beyond the end of the file")
            strings.append(data[start:offset].decode("utf-8"))
        self._offset = offset
        return strings

    def _value(self) -> Value:
        kind = self._unpack("I")
        if kind == ARRAY:
            kind, count = self._unpack("I"), self._unpack("Q")
            return [*self._strings(count)] if kind == STRING else self._scalars(kind, count)
        return self._string() if kind == STRING else self._scalars(kind, 1)[0]

    def _scalars(self, kind: int, count: int) -> list[Scalar]:
        if kind not in SCALARS:
            raise GgufError(f"value type {kind} is not supported")
        size = struct.calcsize("<" + SCALARS[kind]) * count
        if self._offset + size > len(self._data):
            raise struct.error("an array reaches beyond the end of the file")
        values = struct.unpack_from(f"<{count}{SCALARS[kind]}", self._data, self._offset)
        self._offset += size
        return list(values)


class _Fields:
    """The header's fields, with an error that names the field where one is missing or of the wrong type."""

    def __init__(self, path: Path, fields: dict[str, Value]) -> None:
        self._path, self._fields = path, fields

    def optional(self, key: str, kind: type[T]) -> T | None:
        value = self._fields.get(key)
        if value is None:
            return None
        if not isinstance(value, kind):
            raise GgufError(f"{self._path}: the field {key} is {type(value).__name__} where {kind.__name__} is needed")
        return value

    def required(self, key: str, kind: type[T]) -> T:
        value = self.optional(key, kind)
        if value is None:
            raise GgufError(f"{self._path} lacks the field {key}")
        return value

    def optional_tuple(self, key: str, kind: type[T]) -> tuple[T, ...]:
        values = self.optional(key, list)
        if values is None:
            return ()
        if not all(isinstance(value, kind) for value in values):
            raise GgufError(f"{self._path}: the field {key} holds something that is not {kind.__name__}")
        return tuple(values)

    def required_tuple(self, key: str, kind: type[T], length: int | None = None) -> tuple[T, ...]:
        values = self.optional_tuple(key, kind)
        if not values:
            raise GgufError(f"{self._path} lacks the field {key}")
        if length is not None and len(values) != length:
            raise GgufError(f"{self._path}: the field {key} has {len(values)} entries for {length} tokens")
        return values


def _metadata_of(fields: _Fields) -> GgufMetadata:
    architecture = fields.required("general.architecture", str)
    tokenizer_model = fields.required("tokenizer.ggml.model", str)
    tokens = fields.required_tuple("tokenizer.ggml.tokens", str)
    is_bpe = tokenizer_model == "gpt2"

    def token_id(role: str) -> int | None:
        key = f"tokenizer.ggml.{role}_token_id"
        value = fields.optional(key, int)
        if value is not None and not 0 <= value < len(tokens):
            raise GgufError(f"the field {key} is {value}, outside the vocabulary of {len(tokens)} tokens")
        return value

    return GgufMetadata(
        architecture=architecture,
        name=fields.optional("general.name", str),
        context_length=fields.required(f"{architecture}.context_length", int),
        tokenizer_model=tokenizer_model,
        tokenizer_pre=fields.optional("tokenizer.ggml.pre", str) or "default",
        tokens=tokens,
        token_types=fields.required_tuple("tokenizer.ggml.token_type", int, len(tokens)),
        scores=() if is_bpe else fields.required_tuple("tokenizer.ggml.scores", float, len(tokens)),
        merges=fields.required_tuple("tokenizer.ggml.merges", str) if is_bpe else (),
        bos_token_id=token_id("bos"),
        eos_token_id=token_id("eos"),
        eot_token_id=token_id("eot"),
        eom_token_id=token_id("eom"),
        add_bos_token=fields.optional("tokenizer.ggml.add_bos_token", bool),
        add_space_prefix=fields.optional("tokenizer.ggml.add_space_prefix", bool),
        chat_template=fields.optional("tokenizer.chat_template", str),
    )
