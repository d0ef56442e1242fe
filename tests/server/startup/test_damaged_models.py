"""Model files with any damage: a model and a tokenizer that work, or one ModelError that names the file."""

from __future__ import annotations

import contextlib
import copy
import json
import re
import resource
import struct
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.interface.errors import ModelError
from engine.models.open_model import open_model
from server.text.chat_template import ChatTemplateError
from server.text.text_model import TextModel
from server.text.tokenization.native_errors import NativeLibraryError
from server.text.tokenizer import Tokenizer
from tests.golden.tiny_llama import CONFIG
from tests.model_folders import byte_level_tokenizer, write_folder, write_gguf_twin
from tests.server.support.gguf_files import whole_vocabulary

EXAMPLES = 60  # of each kind of file
MOST_S = 5.0  # of processor time, for one damaged file; without damage it takes 20 ms
MOST_GROWTH = 512 << 20  # bytes, over all examples of one kind
MOST_LETTERS = 2000  # of a refusal
TEXT = "hello </s><|im_end|> wörld 12 \U0001f30a"


def use(path: Path) -> None:
    """Opens everything of a model that its first request needs.

    Raises:
        ModelError: it cannot be served.
    """
    opened = open_model(path)
    for leaf in opened.tensors.leaves:
        for tensors in opened.tensors.of(leaf):
            for tensor in tensors:
                assert tensor.float32().shape == tensor.shape
    text = TextModel.load(path)
    tokenizer = text.tokenizer
    with contextlib.suppress(NativeLibraryError):
        check_ids(tokenizer, tokenizer.encode(TEXT, add_special_tokens=True))
    if text.chat_template is not None:
        with contextlib.suppress(ChatTemplateError, NativeLibraryError):
            messages = [{"role": "user", "content": TEXT}]
            shielded = text.chat_template.render_shielded(messages, tokenizer.control)
            check_ids(tokenizer, tokenizer.encode_shielded(shielded))


def check_ids(tokenizer: Tokenizer, token_ids: list[int]) -> None:
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in token_ids)
    tokenizer.decode(token_ids)


def works_or_is_refused(path: Path, file: Path) -> None:
    """Whether the model at `path`, of which `file` may be damaged, is served or refused by name, and soon."""
    started, before, refusal = time.process_time(), peak_memory(), ""
    try:
        use(path)
    except ModelError as error:
        refusal = str(error)
    assert not refusal or path.name in refusal, refusal
    assert len(refusal) < MOST_LETTERS
    assert time.process_time() - started < MOST_S
    assert peak_memory() - before < MOST_GROWTH


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@cache
def folder() -> Path:
    return write_folder(Path(mkdtemp()) / "tiny")


@cache
def gguf(tokenizer: str) -> Path:
    return write_gguf_twin(Path(mkdtemp()) / "tiny.gguf", whole_vocabulary(tokenizer, CONFIG["vocab_size"]))


# ---------------------------------------------------------------- bytes

NUMBERS = [0, 1, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` with a few bytes changed, cut, doubled, or turned into an extreme number."""
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        # Headers are what matters; they come first.
        place = draw(st.one_of(st.integers(0, min(len(data), 4096)), st.integers(0, len(data))))
        match draw(st.sampled_from(["flip", "cut", "number", "double", "remove", "insert"])):
            case "flip":
                byte = data[place : place + 1]
                data = data[:place] + bytes(each ^ draw(st.integers(1, 255)) for each in byte) + data[place + 1 :]
            case "cut":
                data = data[:place]
            case "number":
                width = draw(st.sampled_from([4, 8]))
                number = draw(st.sampled_from(NUMBERS)) & (1 << 8 * width) - 1
                data = data[:place] + number.to_bytes(width, "little") + data[place + width :]
            case "double":
                length = draw(st.integers(1, 64))
                data = data[:place] + data[place : place + length] * 2 + data[place + length :]
            case "remove":
                data = data[:place] + data[place + draw(st.integers(1, 64)) :]
            case "insert":
                data = data[:place] + draw(st.binary(max_size=8)) + data[place:]
    return data


def check_bytes(path: Path, file: Path, data: st.DataObject) -> None:
    whole = file.read_bytes()
    try:
        file.write_bytes(data.draw(damaged(whole)))
        works_or_is_refused(path, file)
    finally:
        file.write_bytes(whole)


@pytest.mark.parametrize("tokenizer", ["gpt2", "llama"])
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_bytes_of_a_gguf_file(tokenizer: str, data: st.DataObject) -> None:
    check_bytes(gguf(tokenizer), gguf(tokenizer), data)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"])
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_bytes_of_a_file_in_a_folder(name: str, data: st.DataObject) -> None:
    check_bytes(folder(), folder() / name, data)


# ---------------------------------------------------------------- values


DEEP = "nested {} times"  # stands for so many lists in each other
HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 319, 320, 1 << 24, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 63, 1 << 70, -(1 << 63),
    0.5, 1e-300, 1e308, float("inf"), float("nan"), "", "a", "\0", "\ud800", "</s>", "{{", "{% for %}", "x" * 100_000,
    [], {}, [None], [1, 2], ["a", "a"], {"": ""}, {"type": "Sequence", "decoders": []}, {"type": "Fuse"},
    {"content": "</s>"}, "{{" + "(" * 5000, "{% if a %}" * 500, *map(DEEP.format, (60, 200, 600, 800, 850, 900, 5000)),
]  # fmt: skip


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of every value in a JSON document; of long lists and tables, those of the first entries."""
    found = [path] if path else []
    items: list[tuple[Any, object]] = []
    match value:
        case dict():
            items = list(value.items())
        case list():
            items = list(enumerate(value))
    for key, inner in items[:12]:
        found += places(inner, (*path, key))
    return found


@st.composite
def changed(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """`document` with a few of its values replaced, removed, or put somewhere else as well."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3]))):
        *path, key = draw(st.sampled_from(places(document) or [("a",)]))
        inner: Any = document
        for step in path:
            inner = inner[step]
        match draw(st.sampled_from(["replace", "replace", "replace", "remove", "again"])):
            case "replace":
                inner[key] = copy.deepcopy(draw(st.sampled_from(HOSTILE)))
            case "remove" if key in inner or isinstance(inner, list):
                del inner[key]
            case "again" if isinstance(inner, list):
                inner.append(copy.deepcopy(inner[key]))
            case "again":
                inner[draw(st.sampled_from([*inner, "other"]))] = copy.deepcopy(inner.get(key))
    return document


def check_values(file: Path, write: Callable[[dict[str, Any]], bytes], document: dict[str, Any]) -> None:
    whole = file.read_bytes()
    try:
        file.write_bytes(write(document))
        works_or_is_refused(folder(), file)
    finally:
        file.write_bytes(whole)


def as_json(document: dict[str, Any]) -> bytes:
    def nest(found: re.Match[str]) -> str:
        return "[" * int(found[1]) + "]" * int(found[1])

    return re.sub('"' + DEEP.format("([0-9]+)") + '"', nest, json.dumps(document)).encode()


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_values_of_a_json_file(name: str, data: st.DataObject) -> None:
    document = json.loads((folder() / name).read_bytes())
    if name == "tokenizer_config.json":
        document |= {"add_bos_token": True, "added_tokens_decoder": {"0": {"content": "<s>", "special": True}}}
    check_values(folder() / name, as_json, data.draw(changed(document)))


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_values_of_a_tokenizer_of_pieces(data: st.DataObject) -> None:
    """With the parts that vocabularies from SentencePiece have."""
    document = json.loads(byte_level_tokenizer().to_str())
    document["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    document["pre_tokenizer"] = None
    document["model"] |= {"byte_fallback": True, "unk_token": "<s>", "fuse_unk": True}
    document["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    check_values(folder() / "tokenizer.json", as_json, data.draw(changed(document)))


@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_values_of_a_safetensors_header(data: st.DataObject) -> None:
    whole = (folder() / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])

    def write(document: dict[str, Any]) -> bytes:
        header = as_json(document)
        return struct.pack("<Q", len(header)) + header + whole[8 + length :]

    check_values(folder() / "model.safetensors", write, data.draw(changed(json.loads(whole[8 : 8 + length]))))
