"""Tiny GGUF files and vocabularies for the tests of the text side."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from server.text.tokenization.gguf_metadata import GgufMetadata, TokenType, read_gguf_metadata

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def encode_value(value: Any) -> bytes:
    """A value with its type number in front, as GGUF stores it."""
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<Ii", 5, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + encode_string(value)
        case list():
            items = [encode_value(item) for item in value]
            kind = items[0][:4] if items else struct.pack("<I", 5)
            return struct.pack("<I", 9) + kind + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)
    raise TypeError(f"no GGUF type for {value!r}")


def encode_string(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def write_gguf(path: Path, fields: dict[str, Any], version: int = 3) -> Path:
    header = b"GGUF" + struct.pack("<IQQ", version, 0, len(fields))
    path.write_bytes(header + b"".join(encode_string(key) + encode_value(value) for key, value in fields.items()))
    return path


def byte_level_fields() -> dict[str, Any]:
    """A byte-level BPE vocabulary: three control tokens, the 256 bytes, and a few merges."""
    from server.text.tokenization.byte_alphabet import byte_of_character

    character = {byte: text for text, byte in byte_of_character().items()}
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2"]
    tokens = [*CONTROL_TOKENS, *(character[byte] for byte in range(256)), *(merge.replace(" ", "") for merge in merges)]
    types = [int(TokenType.CONTROL)] * 3 + [int(TokenType.NORMAL)] * (len(tokens) - 3)
    return {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "llama.context_length": 128,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    }


def whole_vocabulary(kind: str, size: int) -> dict[str, Any]:
    """The tokenizer's fields for a model of `size` tokens. The kinds are "gpt2" and "llama"."""
    if kind == "gpt2":
        fields = {key: value for key, value in byte_level_fields().items() if key.startswith("tokenizer.")}
    else:
        pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "h", "e", "he"]
        types = [TokenType.UNKNOWN, *[TokenType.CONTROL] * 2, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * 4]
        fields = {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": pieces,
            "tokenizer.ggml.token_type": [int(kind) for kind in types],
            "tokenizer.ggml.scores": [-float(number) for number in range(size)],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        }
    num_unused = size - len(fields["tokenizer.ggml.tokens"])
    fields["tokenizer.ggml.tokens"] += [f"<unused{number}>" for number in range(num_unused)]
    fields["tokenizer.ggml.token_type"] += [int(TokenType.UNUSED)] * num_unused
    return fields


def metadata_of(folder: Path, fields: dict[str, Any]) -> GgufMetadata:
    return read_gguf_metadata(write_gguf(folder / "tiny.gguf", fields))
