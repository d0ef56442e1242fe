"""Tokenizers of model folders give the same as the `tokenizers` and `sentencepiece` libraries."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Reference
from tokenizers.models import BPE, WordLevel

from engine.interface.errors import ModelError
from engine.weights.formats.model_folder import ModelFolder
from server.text.chat_template import ChatTemplate
from server.text.detokenizer import IncrementalDetokenizer
from server.text.folder_tokenizer import load_folder_tokenizer
from server.text.tokenization.folder_metadata import read_folder_metadata
from server.text.tokenizer import Tokenizer
from tests.golden.tiny_llama import CONFIG
from tests.model_folders import BOS, END_OF_TURN, EOS, TOKENIZER_CONFIG, TOOL, byte_level_tokenizer, write_json
from tests.server.text.tokenization.test_sentencepiece_vocabulary import train

TEXTS = st.text(max_size=30)


def write(
    folder: Path,
    reference: Reference | None = None,
    *,
    config: dict[str, Any] | None = None,
    tokenizer_config: dict[str, Any] | None = None,
) -> Path:
    """The text side of a model folder, without weights."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", CONFIG | (config or {}))
    if reference is not None:
        reference.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", TOKENIZER_CONFIG if tokenizer_config is None else tokenizer_config)
    return folder


def load(path: Path) -> Tokenizer:
    folder = ModelFolder(path)
    return load_folder_tokenizer(folder, read_folder_metadata(folder))


def marked_tokenizer() -> Reference:
    """A tokenizer like that of Llama 2: marked spaces, a space before a text, and unknown characters as bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁helowrd", "▁h", "el", "lo"]
    merges = [("▁", "h"), ("e", "l"), ("l", "o")]
    vocabulary = {piece: token_id for token_id, piece in enumerate(pieces)}
    reference = Reference(BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    reference.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    reference.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    reference.add_special_tokens(["<unk>", "<s>", "</s>"])
    reference.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return reference


@pytest.mark.parametrize("has_normalizer", [False, True])
def test_capitals_are_lowered_where_sentence_transformers_does_it(tmp_path: Path, has_normalizer: bool) -> None:
    reference = byte_level_tokenizer()
    if has_normalizer:
        reference.normalizer = normalizers.Replace("hello", "hell")
    path = write(tmp_path, reference)
    plain = load(path)
    write_json(path / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": True})
    lowering = load(path)
    for text, lowered in (("HeLLo Ä", "hello ä"), ("hello", "hello")):
        expected = plain.encode(lowered, add_special_tokens=True)
        assert lowering.encode(text, add_special_tokens=True) == expected
        assert lowering.encode_parts([text]) == expected
    assert plain.encode("HeLLo", add_special_tokens=True) != lowering.encode("HeLLo", add_special_tokens=True)


def test_capitals_are_not_lowered_without_the_tokenizers_own_file(tmp_path: Path) -> None:
    write_json(write(tmp_path) / "sentence_bert_config.json", {"do_lower_case": True})
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(ModelError, match="do_lower_case"):
        load(tmp_path)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Reference]:
    reference = byte_level_tokenizer()
    return load(write(tmp_path_factory.mktemp("model"), reference)), reference


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Reference]:
    reference = marked_tokenizer()
    return load(write(tmp_path_factory.mktemp("model"), reference)), reference


def in_steps(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    detokenizer = IncrementalDetokenizer(tokenizer)
    return "".join(detokenizer.decode([token_id]) for token_id in token_ids)


@given(st.one_of(TEXTS, st.lists(st.sampled_from(["hello", " w", TOOL, "<|im_end|>", "</s>", "é"])).map("".join)))
@example("<s>")
@example("<s>hello<s>")
def test_byte_level_equals_the_library(byte_level: tuple[Tokenizer, Reference], text: str) -> None:
    tokenizer, reference = byte_level
    token_ids = tokenizer.encode(text, add_special_tokens=True)
    expected_ids = reference.encode(text, add_special_tokens=True).ids
    assert token_ids == expected_ids[text.startswith("<s>") :]  # what the text has written itself is not doubled
    assert tokenizer.encode(text, add_special_tokens=False) == expected_ids[1:]
    expected = reference.decode(token_ids, skip_special_tokens=True)
    assert tokenizer.decode(token_ids) == in_steps(tokenizer, token_ids) == expected


@given(st.one_of(TEXTS, st.lists(st.sampled_from(["hello", " w", "</s>", "é", "日"])).map("".join)))
def test_marked_spaces_equal_the_library(marked: tuple[Tokenizer, Reference], text: str) -> None:
    tokenizer, reference = marked
    token_ids = tokenizer.encode(text, add_special_tokens=True)
    assert token_ids == reference.encode(text, add_special_tokens=True).ids
    # An output keeps its first space, because it continues the prompt.
    text = tokenizer.decode(token_ids)
    assert text.removeprefix(" ") == reference.decode(token_ids, skip_special_tokens=True)
    assert in_steps(tokenizer, token_ids) == text


def test_bytes_of_a_character_come_together(marked: tuple[Tokenizer, Reference]) -> None:
    tokenizer, _ = marked
    token_ids = [3 + byte for byte in "日".encode()]
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.decode([token_id]) for token_id in token_ids] == ["", "", "日"]
    assert tokenizer.token_text(token_ids[0]) == "<0xE6>"


def test_metaspace_marks_spaces_too(tmp_path: Path) -> None:
    reference = Reference(BPE({piece: token_id for token_id, piece in enumerate("▁helowrd")}, []))
    reference.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    reference.decoder = decoders.Metaspace(prepend_scheme="never")
    tokenizer = load(write(tmp_path, reference, tokenizer_config={}))
    assert tokenizer.decode(tokenizer.encode("hello world", add_special_tokens=True)) == "hello world"


def test_tokens_beyond_the_vocabulary_have_no_text(byte_level: tuple[Tokenizer, Reference]) -> None:
    tokenizer, reference = byte_level
    assert reference.get_vocab_size() == 266
    assert tokenizer.vocab_size == len(tokenizer.token_bytes) == CONFIG["vocab_size"] == 320
    assert (tokenizer.decode([319, 4 + ord("a")]), tokenizer.token_text(319)) == ("a", "")


@pytest.mark.parametrize(
    ("stored", "said", "expected"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"add_bos_token": False}, False),
        (False, {"add_bos_token": True}, True),
        (True, {"add_eos_token": False}, True),
        (False, {"add_bos_token": True, "bos_token": None}, False),
    ],
)
def test_the_first_token_follows_the_configuration(
    tmp_path: Path, stored: bool, said: dict[str, Any], expected: bool
) -> None:
    reference = byte_level_tokenizer(adds_bos_token=stored)
    tokenizer = load(write(tmp_path, reference, tokenizer_config=TOKENIZER_CONFIG | said))
    plain = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.encode("hello", add_special_tokens=True) == [BOS] * expected + plain
    assert tokenizer.add_bos_token is expected


def test_a_last_token_is_added_if_the_model_wants_it(tmp_path: Path) -> None:
    tokenizer = load(
        write(tmp_path, byte_level_tokenizer(), tokenizer_config=TOKENIZER_CONFIG | {"add_eos_token": True})
    )
    plain = tokenizer.encode("hello", add_special_tokens=False)
    assert tokenizer.encode("hello", add_special_tokens=True) == [BOS, *plain, EOS]


def test_end_tokens_come_from_all_files(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level_tokenizer(), config={"eos_token_id": 10})
    assert load(folder).eos_token_ids == (10, EOS, END_OF_TURN)
    write_json(folder / "generation_config.json", {"eos_token_id": [12, 11]})
    assert load(folder).eos_token_ids == (12, 11, 10, EOS, END_OF_TURN)


def test_prompts_are_neither_truncated_nor_padded(tmp_path: Path) -> None:
    reference = byte_level_tokenizer()
    reference.enable_truncation(4)
    reference.enable_padding(length=40)
    assert len(load(write(tmp_path, reference)).encode("x" * 20, add_special_tokens=True)) == 21


def test_named_special_tokens_are_special(tmp_path: Path) -> None:
    """This holds even if `tokenizer.json` does not mark them as special."""
    tokenizer = load(write(tmp_path, byte_level_tokenizer(), tokenizer_config={"eos_token": TOOL}))
    token_ids = tokenizer.encode(f"hello{TOOL}", add_special_tokens=False)
    assert tokenizer.decode(token_ids) == "hello"
    assert tokenizer.eos_token_ids == (token_ids[-1], END_OF_TURN)


def change(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    edit(content)
    write_json(path, content)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda content: content.update(decoder=None), "the decoder null is not supported; supported are ByteLevel"),
        (
            lambda content: content.update(decoder={"type": "BPEDecoder", "suffix": "</w>"}),
            "decoder BPEDecoder",
        ),
        (
            lambda content: content.update(
                decoder={
                    "type": "Sequence",
                    "decoders": [{"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}, {"type": "Fuse"}],
                }
            ),
            "the decoder Fuse, Replace is not supported",
        ),
        (lambda content: content.update(decoder={"type": "Replace"}), "is damaged, or of a kind that is not known"),
        (lambda content: content.pop("model"), "is damaged, or of a kind that is not known"),
        (lambda content: content["model"]["vocab"].update(far=1 << 30), "the highest token id is 1073741824"),
    ],
)
def test_unsupported_pipelines_are_refused(
    tmp_path: Path, edit: Callable[[dict[str, Any]], object], words: str
) -> None:
    folder = write(tmp_path, byte_level_tokenizer())
    change(folder, edit)
    with pytest.raises(ModelError, match=words):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_a_damaged_tokenizer_is_reported(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path)
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"tokenizer.json is damaged"):
        load(folder)


def test_a_folder_without_a_tokenizer_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer: it has none of tokenizer.json, tokenizer.model, tiktoken"):
        load(write(tmp_path))


def test_unknown_special_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"the eos_token '<end>' is not in the tokenizer's vocabulary"):
        load(write(tmp_path, byte_level_tokenizer(), tokenizer_config={"eos_token": "<end>"}))


@pytest.mark.parametrize(("token_id", "is_refused"), [(265, True), (300, True), (320, False)])
def test_tokens_added_in_other_files_are_refused(tmp_path: Path, token_id: int, is_refused: bool) -> None:
    added = {"added_tokens_decoder": {str(token_id): {"content": "<pad>", "special": True}}}
    folder = write(tmp_path, byte_level_tokenizer(), tokenizer_config=TOKENIZER_CONFIG | added)
    if not is_refused:
        assert load(folder).vocab_size == 320
        return
    with pytest.raises(ModelError, match=rf"the added token '<pad>' \({token_id}\) is not in the tokenizer's file"):
        load(folder)


def test_a_vocabulary_larger_than_the_matrices_keeps_its_tokens(tmp_path: Path) -> None:
    reference = byte_level_tokenizer()
    reference.add_tokens([AddedToken(f"<{i}>", special=True) for i in range(100)])
    assert load(write(tmp_path, reference)).vocab_size == 366


def test_sentencepiece_is_used_if_there_is_no_json(tmp_path: Path) -> None:
    original = train()
    folder = write(tmp_path, config={"vocab_size": 512})
    (folder / "tokenizer.model").write_bytes(original.serialized_model_proto())
    tokenizer = load(folder)
    for text in ("The boat came", "weather 12 é日"):
        assert tokenizer.encode(text, add_special_tokens=True) == [original.bos_id(), *original.encode(text)]
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(token_ids) == in_steps(tokenizer, token_ids) == " " + text
    assert tokenizer.encode("</s>", add_special_tokens=False) == [original.eos_id()]
    assert (tokenizer.eos_token_ids, tokenizer.vocab_size) == ((original.eos_id(),), 512)
    write_json(folder / "tokenizer_config.json", TOKENIZER_CONFIG | {"add_bos_token": False})
    assert load(folder).encode("a", add_special_tokens=True) == original.encode("a")


def test_tokens_added_to_sentencepiece(tmp_path: Path) -> None:
    original = train()
    size = original.vocab_size()
    folder = write(tmp_path, config={"vocab_size": size + 4})
    (folder / "tokenizer.model").write_bytes(original.serialized_model_proto())
    write_json(folder / "added_tokens.json", {"<|im_end|>": size, "<note>": size + 1, "<far>": size + 9})
    tokenizer = load(folder)
    token_ids = tokenizer.encode("the<note>boat<|im_end|>", add_special_tokens=False)
    assert token_ids == [*original.encode("the"), size + 1, *original.encode("boat"), size]
    assert tokenizer.decode(token_ids) == in_steps(tokenizer, token_ids) == " the<note> boat<|im_end|>"
    assert tokenizer.encode("<far>", add_special_tokens=False) == original.encode("<far>")
    assert (tokenizer.vocab_size, tokenizer.token_bytes[size + 2 :]) == (size + 4, [b"", b""])
    # A message cannot write the control token, whatever files say of it; it may write the other one.
    template = ChatTemplate("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    shielded = template.render_shielded([{"role": "user", "content": "a<|im_end|><note>"}], tokenizer.control)
    token_ids = tokenizer.encode_shielded(shielded)
    assert (token_ids.count(size), token_ids[-1], token_ids.count(size + 1)) == (1, size, 1)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({}, " the boat</s>"),
        ({"legacy": True}, " the boat</s>"),
        ({"legacy": False}, " theboat</s>"),
        ({"add_prefix_space": False}, "theboat</s>"),
    ],
)
def test_the_space_in_front_follows_the_configuration(tmp_path: Path, said: dict[str, Any], text: str) -> None:
    original = train()
    size = original.vocab_size()
    decoder = {str(size): {"content": "<x>", "special": True}, str(size + 1): {"content": "</s> ", "special": False}}
    folder = write(
        tmp_path,
        config={"vocab_size": size + 2},
        tokenizer_config=TOKENIZER_CONFIG | {"added_tokens_decoder": decoder} | said,
    )
    (folder / "tokenizer.model").write_bytes(original.serialized_model_proto())
    tokenizer = load(folder)
    assert tokenizer.decode(tokenizer.encode("the<x>boat</s> ", add_special_tokens=False)) == f"{text} "


def test_an_added_token_in_the_place_of_a_piece_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, config={"vocab_size": 512})
    (folder / "tokenizer.model").write_bytes(train().serialized_model_proto())
    write_json(folder / "added_tokens.json", {"<|im_end|>": 7})
    with pytest.raises(ModelError, match=r"'<\|im_end\|>' has the id 7, which tokenizer.model gives to"):
        load(folder)


@pytest.mark.parametrize("content", [b"", b"junk", b"\x0a\xff\xff"])
def test_a_damaged_sentencepiece_model_is_reported(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path)
    (folder / "tokenizer.model").write_bytes(content)
    with pytest.raises(ModelError, match=r"tokenizer.model is not a SentencePiece model, or it is damaged"):
        load(folder)


def test_a_post_processor_that_rewrites_tokens_is_refused(tmp_path: Path) -> None:
    reference = Reference(WordLevel({"a": 0, "<s>": 1}, unk_token="a"))
    reference.pre_tokenizer = pre_tokenizers.Whitespace()
    reference.decoder = decoders.Metaspace()
    reference.post_processor = processors.TemplateProcessing(
        single="<s> $A <s> $A", pair="$A $B", special_tokens=[("<s>", 1)]
    )
    with pytest.raises(ModelError, match="does not leave a text's tokens as they are"):
        load(write(tmp_path, reference, tokenizer_config={}))


def test_a_vocabulary_that_cannot_write_every_text_is_refused(tmp_path: Path) -> None:
    reference = Reference(WordLevel({"a": 0}, unk_token="<unk>"))
    reference.decoder = decoders.Metaspace()
    with pytest.raises(ModelError, match=r"cannot tokenise every text: .*Missing"):
        load(write(tmp_path, reference, tokenizer_config={}))


def test_what_a_text_begins_with_is_not_added_again(byte_level: tuple[Tokenizer, Reference]) -> None:
    tokenizer, _ = byte_level
    token_ids = tokenizer.encode("hello", add_special_tokens=True)
    assert tokenizer.num_prefix_tokens == 1
    begin = tokenizer.token_text(token_ids[0])
    assert tokenizer.encode(begin + "hello", add_special_tokens=True) == token_ids
    assert tokenizer.encode(begin + "hello", add_special_tokens=False) == token_ids
