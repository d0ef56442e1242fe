"""Reads name, limits, vocabulary and chat template from the header of a GGUF file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np

from engine.interface.errors import ModelError
from engine.weights.formats.gguf_file import GGUFFile
from server.text.tokenization.control_tokens import is_control_name

EMBEDDING = "token_embd.weight"
# Fields of SamplingParams, and the suffix of each after `general.sampling.`.
SAMPLING_FIELDS = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
# The names that templates for other purposes than plain chat have in files.
TEMPLATE_VARIANTS = ("tool_use", "rag")
SCORED = ("llama", "t5", "plamo2")  # the kinds of SentencePiece, and PLaMo's
MERGED = ("gpt2", "gemma4")  # the kinds of BPE that state their merges
MAX_CONTEXT = (1 << 31) - 1  # tokens; positions are int32 on the device
NO_TOKEN = (-1, 0xFFFFFFFF)  # -1 as the two kinds of integers in which files have the ids of tokens

# What fields call the tokens of fill-in-the-middle, now and in older files.
INFILL_ROLES = (("fim_pre", "prefix"), ("fim_suf", "suffix"), ("fim_mid", "middle"))

T = TypeVar("T")


class TokenType(IntEnum):
    """The values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class GgufMetadata:
    """What the server needs to know of a GGUF file. Lists of the vocabulary are indexed by token id."""

    architecture: str
    name: str | None  # the name of the model in the file
    context_length: int  # tokens the model was trained for
    tokenizer_model: str  # "gpt2": byte-level BPE; "llama", "t5": SentencePiece; "bert": WordPiece; "plamo2"; "gemma4"
    tokenizer_pre: str | None  # the name of the pre-tokenizer of byte-level BPE
    tokens: tuple[str, ...]
    token_types: tuple[int, ...]  # see TokenType
    scores: tuple[float, ...]  # for the vocabularies in SCORED, else empty
    merges: tuple[str, ...]  # for the vocabularies in MERGED, else empty; "left right", best first
    bos_token_id: int | None
    eos_token_id: int | None
    unknown_token_id: int | None
    eot_token_id: int | None  # ends a turn
    eom_token_id: int | None  # ends a message that expects the answer of a tool
    add_bos_token: bool | None  # None: the kind of the tokenizer decides
    add_eos_token: bool | None  # None: as above
    add_space_prefix: bool | None  # None: as above
    remove_extra_whitespaces: bool | None  # whether spaces in a row count as one; None: as above
    precompiled_charsmap: bytes  # how SentencePiece normalises texts; empty: it does not
    chat_template: str | None
    template_variants: Mapping[str, str]  # templates for other purposes than plain chat, by name
    infill_ids: tuple[int | None, ...]  # of fill-in-the-middle: the prefix, the suffix, the middle
    sampling: Mapping[str, int | float | None]  # what the makers recommend, unchecked, by fields of SamplingParams
    cls_token_id: int | None = None  # before a text of an encoder
    sep_token_id: int | None = None  # behind it
    mask_token_id: int | None = None  # in the place of a word that an encoder shall guess
    pooling_type: int | None = None  # of the embeddings, in llama.cpp's numbers
    rerank_template: str | None = None  # how a decoder is shown a query and a document
    output_labels: tuple[str, ...] = ()  # of its head

    @cached_property
    def other_ids(self) -> tuple[int, ...]:
        """The few tokens of other types than TokenType.NORMAL."""
        return tuple(np.flatnonzero(np.asarray(self.token_types) != TokenType.NORMAL).tolist())

    @cached_property
    def control_ids(self) -> tuple[int, ...]:
        """Tokens that no message may write: control tokens, and those that only their names show as such."""
        kinds = ((token_id, self.tokens[token_id], self.token_types[token_id]) for token_id in self.other_ids)
        return tuple(
            token_id
            for token_id, token, token_type in kinds
            if (token_type == TokenType.CONTROL and token)
            or (token_type == TokenType.USER_DEFINED and is_control_name(token))
        )


def read_gguf_metadata(path: Path) -> GgufMetadata:
    """Reads the header of a GGUF file; raises ModelError if it is damaged, not supported, or lacks a needed field."""
    return _metadata_of(_Fields(path, GGUFFile(path)))


class _Fields:
    def __init__(self, path: Path, file: GGUFFile) -> None:
        self.path, self._file = path, file

    def optional(self, key: str, kind: type[T]) -> T | None:
        value = self._file.value(key)
        if value is None:
            return None
        if not isinstance(value, kind):
            raise ModelError(f"{self.path}: the field {key} is {type(value).__name__} where {kind.__name__} is needed")
        return value

    def number(self, key: str) -> int | float | None:
        """A number; a float of 32 bits as the short decimal number that it was written from."""
        value = self._file.value(key)
        if isinstance(value, float):
            return float(f"{value:.7g}")
        return self.optional(key, int)

    def named_texts(self, key: str, names: Iterable[str]) -> dict[str, str]:
        """The fields `key.NAME` that there are, by name."""
        texts = {name: self.optional(f"{key}.{name}", str) for name in names}
        return {name: text for name, text in texts.items() if text is not None}

    def required(self, key: str, kind: type[T]) -> T:
        value = self.optional(key, kind)
        if value is None:
            raise ModelError(f"{self.path} lacks the field {key}")
        return value

    def required_integer(self, key: str, *, least: int, most: int) -> int:
        value = self.required(key, int)
        if not least <= value <= most:
            raise ModelError(f"{self.path}: the field {key} is {value}; it must be from {least} to {most}")
        return value

    def optional_tuple(self, key: str, kind: type[T]) -> tuple[T, ...]:
        values = self.optional(key, list)
        if values is None:
            return ()
        if not all(issubclass(found, kind) for found in set(map(type, values))):
            raise ModelError(f"{self.path}: the field {key} holds something that is not {kind.__name__}")
        return tuple(values)

    def bytes_of(self, key: str) -> bytes:
        """An array of signed or unsigned bytes; empty where the field is missing."""
        values = self.optional_tuple(key, int)
        if values and not -0x80 <= min(values) <= max(values) <= 0xFF:
            raise ModelError(f"{self.path}: the field {key} holds something that is not a byte")
        return bytes([value & 0xFF for value in values])

    def required_tuple(self, key: str, kind: type[T], length: int | None = None) -> tuple[T, ...]:
        values = self.optional_tuple(key, kind)
        if not values:
            raise ModelError(f"{self.path} lacks the field {key}")
        if length is not None and len(values) != length:
            raise ModelError(f"{self.path}: the field {key} has {len(values)} entries for {length} tokens")
        return values

    def check_embedding(self, num_tokens: int) -> None:
        """Raises ModelError where the model's embedding, if the file has it, has another number of tokens."""
        for tensor in self._file.tensors:
            num_rows = int(tensor.shape[-1]) if len(tensor.shape) else 1  # the file has the row's length first
            if tensor.name == EMBEDDING and num_rows != num_tokens:
                raise ModelError(
                    f"{self.path}: the tensor {EMBEDDING} has {num_rows} rows, and the field tokenizer.ggml.tokens "
                    f"has {num_tokens} tokens; they must be as many"
                )


def _metadata_of(fields: _Fields) -> GgufMetadata:
    architecture = fields.required("general.architecture", str)
    tokenizer_model = fields.required("tokenizer.ggml.model", str)
    tokens = fields.required_tuple("tokenizer.ggml.tokens", str)
    fields.check_embedding(len(tokens))

    def token_id(role: str) -> int | None:
        key = f"tokenizer.ggml.{role}_token_id"
        value = fields.optional(key, int)
        if value in NO_TOKEN:
            return None
        if value is not None and not 0 <= value < len(tokens):
            raise ModelError(
                f"{fields.path}: the field {key} is {value}, outside the vocabulary of {len(tokens)} tokens"
            )
        return value

    return GgufMetadata(
        architecture=architecture,
        name=fields.optional("general.name", str),
        context_length=fields.required_integer(f"{architecture}.context_length", least=1, most=MAX_CONTEXT),
        tokenizer_model=tokenizer_model,
        tokenizer_pre=fields.optional("tokenizer.ggml.pre", str) or None,
        tokens=tokens,
        token_types=fields.required_tuple("tokenizer.ggml.token_type", int, len(tokens)),
        scores=fields.required_tuple("tokenizer.ggml.scores", float, len(tokens)) if tokenizer_model in SCORED else (),
        merges=fields.required_tuple("tokenizer.ggml.merges", str) if tokenizer_model in MERGED else (),
        bos_token_id=token_id("bos"),
        eos_token_id=token_id("eos"),
        unknown_token_id=token_id("unknown"),
        eot_token_id=token_id("eot"),
        eom_token_id=token_id("eom"),
        add_bos_token=fields.optional("tokenizer.ggml.add_bos_token", bool),
        add_eos_token=fields.optional("tokenizer.ggml.add_eos_token", bool),
        add_space_prefix=fields.optional("tokenizer.ggml.add_space_prefix", bool),
        remove_extra_whitespaces=fields.optional("tokenizer.ggml.remove_extra_whitespaces", bool),
        precompiled_charsmap=fields.bytes_of("tokenizer.ggml.precompiled_charsmap"),
        chat_template=fields.optional("tokenizer.chat_template", str),
        template_variants=fields.named_texts("tokenizer.chat_template", TEMPLATE_VARIANTS),
        infill_ids=tuple(token_id(older) if (now := token_id(role)) is None else now for role, older in INFILL_ROLES),
        sampling={name: fields.number(f"general.sampling.{field}") for name, field in SAMPLING_FIELDS.items()},
        cls_token_id=token_id("cls"),
        sep_token_id=token_id("seperator"),  # so it is spelled
        mask_token_id=token_id("mask"),
        pooling_type=fields.optional(f"{architecture}.pooling_type", int),
        rerank_template=fields.optional("tokenizer.chat_template.rerank", str),
        output_labels=fields.optional_tuple(f"{architecture}.classifier.output_labels", str),
    )
