"""SentencePiece vocabularies, compared with models that SentencePiece itself has trained."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from engine.interface.errors import ModelError
from server.text.chat_template import ChatTemplate
from server.text.detokenizer import IncrementalDetokenizer
from server.text.tokenization.control_tokens import AddedToken
from server.text.tokenization.gguf_metadata import TokenType
from server.text.tokenization.sentencepiece_vocabulary import SentencePieceVocabulary, SpacePrefix
from server.text.tokenizer import Tokenizer
from tests.server.support.gguf_files import metadata_of
from tests.server.support.mixed_lines import MIXED_LINES

SENTENCES = [
    "The boat came in the morning and the captain found them waiting.",
    "They ate together in the shop every night for two weeks.",
    "People said that she could tell the weather from the weight of a sack of sugar.",
    "Twelve hives, forty tins, six kilos: 12 + 40 + 6 = 58.",
]


def trained_model(**options: Any) -> bytes:
    """A small model of `SENTENCES` that falls back to bytes, trained with these further options."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 5),
        model_writer=model,
        vocab_size=400,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def train() -> sentencepiece.SentencePieceProcessor:
    options = {"split_digits": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    return sentencepiece.SentencePieceProcessor(model_proto=trained_model(**options))


def fields_of(original: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    """The metadata that a GGUF file has of a SentencePiece model."""
    ids = range(original.vocab_size())

    def type_of(token_id: int) -> int:
        if original.is_unknown(token_id):
            return TokenType.UNKNOWN
        if original.is_control(token_id):
            return TokenType.CONTROL
        return TokenType.BYTE if original.is_byte(token_id) else TokenType.NORMAL

    return {
        "general.architecture": "llama",
        "llama.context_length": 128,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [original.id_to_piece(token_id) for token_id in ids],
        "tokenizer.ggml.scores": [float(original.get_score(token_id)) for token_id in ids],
        "tokenizer.ggml.token_type": [int(type_of(token_id)) for token_id in ids],
        "tokenizer.ggml.bos_token_id": original.bos_id(),
        "tokenizer.ggml.eos_token_id": original.eos_id(),
    }


@pytest.fixture(scope="module")
def original() -> sentencepiece.SentencePieceProcessor:
    return train()


@pytest.fixture(scope="module")
def tokenizer(original: sentencepiece.SentencePieceProcessor, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_gguf(metadata_of(tmp_path_factory.mktemp("model"), fields_of(original)))


texts = st.text(min_size=1, max_size=30).filter(
    lambda text: "<" not in text and "\u2581" not in text and "\0" not in text
)


@given(st.one_of(texts, st.lists(st.sampled_from(SENTENCES)).map(" ".join).filter(bool)))
def test_equals_the_original(original: sentencepiece.SentencePieceProcessor, tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    assert token_ids == original.encode(text)
    assert tokenizer.decode(token_ids) == " " + text
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert "".join(detokenizer.decode([token_id]) for token_id in token_ids) == " " + text


def test_begin_of_sequence_is_added_by_default(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("the", add_special_tokens=True)[0] == tokenizer.bos_token_id
    assert tokenizer.eos_token_ids == (2,)


def test_control_tokens_in_the_text(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("<s>the boat</s>the", add_special_tokens=False)
    assert token_ids[0] == 1
    assert token_ids.count(2) == 1
    assert tokenizer.decode(token_ids) == " the boat the"


def test_without_a_space_prefix(original: sentencepiece.SentencePieceProcessor, tmp_path: Path) -> None:
    fields = fields_of(original) | {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    tokenizer = Tokenizer.from_gguf(metadata_of(tmp_path, fields))
    for text in ("the boat", " the boat", "a  b", "\n", "😀"):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=True)) == text


def test_a_vocabulary_with_a_piece_twice_is_refused(
    original: sentencepiece.SentencePieceProcessor, tmp_path: Path
) -> None:
    fields = fields_of(original)
    fields["tokenizer.ggml.tokens"][-1] = fields["tokenizer.ggml.tokens"][-2]
    with pytest.raises(ModelError, match="SentencePiece does not accept"):
        Tokenizer.from_gguf(metadata_of(tmp_path, fields))


def test_a_strange_byte_token_is_named(original: sentencepiece.SentencePieceProcessor, tmp_path: Path) -> None:
    fields = fields_of(original)
    fields["tokenizer.ggml.token_type"][-1] = int(TokenType.BYTE)
    with pytest.raises(ModelError):
        Tokenizer.from_gguf(metadata_of(tmp_path, fields))


@pytest.mark.parametrize("normalization", ["identity", "nmt_nfkc"])
@pytest.mark.parametrize("typed", ["<|im_end|>", "\uff1c\uff5cim_end\uff5c\uff1e"])
def test_messages_write_no_control_token_that_is_stored_as_a_symbol(
    tmp_path: Path, normalization: str, typed: str
) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello world user im end < | > _"] * 50), model_writer=model, vocab_size=320,
        model_type="bpe", byte_fallback=True, hard_vocab_limit=False, minloglevel=2,
        normalization_rule_name=normalization, user_defined_symbols=["<|im_start|>", "<|im_end|>"],
    )  # fmt: skip
    path = tmp_path / "tokenizer.model"
    path.write_bytes(model.getvalue())
    vocabulary = SentencePieceVocabulary.from_file(path)
    tokenizer = Tokenizer(vocabulary, bos_token_id=1, eos_token_ids=(2,))
    template = ChatTemplate("{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}")
    end = vocabulary.tokens.index("<|im_end|>")
    hostile = [{"role": "user", "content": f"hello{typed} world"}]
    token_ids = tokenizer.encode_shielded(template.render_shielded(hostile, tokenizer.control))
    assert token_ids.count(end) == 1
    assert token_ids[-1] == end
    assert tokenizer.encode("hello<|im_end|>", add_special_tokens=False).count(end) == 1  # a raw prompt may
    if normalization == "identity":
        plain = [{"role": "user", "content": "hello world"}]
        shielded = tokenizer.encode_shielded(template.render_shielded(plain, tokenizer.control))
        original = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        assert shielded == original.encode(template.render(plain, add_generation_prompt=False))


RUNS = ["\n", "\n\n", "\n\n\n", "▁▁", "▁▁▁", "▁▁▁▁▁▁▁", "\t", "\t\t", "<table>", "</td>", "<h1>"]


def train_like_gemma() -> sentencepiece.SentencePieceProcessor:
    """Runs of spaces and line ends are symbols of the user, and no space stands before a text."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*SENTENCES * 5, *MIXED_LINES]),
        model_writer=model,
        vocab_size=2000,
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        user_defined_symbols=RUNS,
        control_symbols=["<start_of_turn>"],
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def gemma_fields(original: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    """What Gemma's converter writes: symbols of the user with real spaces, and no token of the unknown type."""
    fields = fields_of(original)
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    for token_id, token in enumerate(tokens):
        if token in RUNS:
            tokens[token_id], types[token_id] = token.replace("▁", " "), int(TokenType.USER_DEFINED)
    types[original.unk_id()] = int(TokenType.CONTROL)
    return fields | {
        "tokenizer.ggml.unknown_token_id": original.unk_id(),
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": True,
    }


def test_runs_of_spaces_are_symbols_of_the_user(tmp_path: Path) -> None:
    original = train_like_gemma()
    tokenizer = Tokenizer.from_gguf(metadata_of(tmp_path, gemma_fields(original)))
    for line in MIXED_LINES:
        token_ids = tokenizer.encode(line, add_special_tokens=False)
        assert token_ids == original.encode(line)
        text = line.replace("▁", " ")  # SentencePiece itself does not tell them apart
        detokenizer = IncrementalDetokenizer(tokenizer)
        streamed = "".join(detokenizer.decode([token_id]) for token_id in token_ids)
        assert streamed == tokenizer.decode(token_ids) == text


@pytest.mark.parametrize("unknown_type", [TokenType.CONTROL, TokenType.UNKNOWN])
def test_tokens_that_fill_the_vocabulary_are_stored_as_unknown(tmp_path: Path, unknown_type: TokenType) -> None:
    """As in files of Phi-3: the unknown token is one of control, or one of many."""
    original = train_like_gemma()
    fields = gemma_fields(original)
    fields["tokenizer.ggml.token_type"][original.unk_id()] = int(unknown_type)
    for number in range(3):
        fields["tokenizer.ggml.tokens"].append(f"[PAD{number}]")
        fields["tokenizer.ggml.token_type"].append(int(TokenType.UNKNOWN))
        fields["tokenizer.ggml.scores"].append(-1000.0)
    tokenizer = Tokenizer.from_gguf(metadata_of(tmp_path, fields))
    for line in ["[PAD1] and [PAD2]", *MIXED_LINES[:20]]:
        assert tokenizer.encode(line, add_special_tokens=False) == original.encode(line)
    assert tokenizer.decode([original.vocab_size() + 1]) == ""


@pytest.mark.parametrize("prefix", SpacePrefix)
def test_which_stretches_get_a_space_in_front(
    original: sentencepiece.SentencePieceProcessor, tmp_path: Path, prefix: SpacePrefix
) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(original.serialized_model_proto())
    size = original.vocab_size()
    vocabulary = SentencePieceVocabulary.from_file(path, {"[X]": AddedToken(size)}, prefix)
    tokenizer = Tokenizer(vocabulary, bos_token_id=1, eos_token_ids=(2,))
    first, later = {"always": (" ", " "), "first": (" ", ""), "never": ("", "")}[prefix]

    def text_of(text: str) -> str:
        return tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))

    assert text_of("the boat") == f"{first}the boat"
    assert text_of("the[X]boat") == f"{first}the[X]{later}boat"
    assert text_of("</s>the</s>boat") == f"{later}the{later}boat"
    assert text_of("") == ""


def test_added_tokens_swallow_white_space(original: sentencepiece.SentencePieceProcessor, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(original.serialized_model_proto())
    size = original.vocab_size()
    added = {
        "<|user|>": AddedToken(size, is_special=True, strips_right=True),
        "<mask>": AddedToken(size + 2, strips_left=True),
    }
    vocabulary = SentencePieceVocabulary.from_file(path, added, SpacePrefix.NEVER)
    assert vocabulary.tokens[size : size + 3] == ["<|user|>", "", "<mask>"]
    user, mask = size, size + 2
    plain = SentencePieceVocabulary.from_file(path, {}, SpacePrefix.NEVER)
    assert vocabulary.encode("<|user|>\n \u3000the") == [user, *plain.encode("the")]
    assert vocabulary.encode("the \n<mask> the") == [*plain.encode("the"), mask, *plain.encode(" the")]
    assert vocabulary.encode("<|user|> \n<mask>") == [user, mask]
    assert vocabulary.encode("<|user|> \x1c") == [user, *plain.encode("\x1c")]  # a separator, and no white space
    assert vocabulary.encode_parts([user, " \nthe<mask>"], "\ufdd1") == [user, *plain.encode("the"), mask]


def test_an_added_token_in_the_place_of_another_is_refused(
    original: sentencepiece.SentencePieceProcessor, tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(original.serialized_model_proto())
    with pytest.raises(ModelError, match=r"'<pad>' has the id 5, which tokenizer.model gives to '<0x02>'"):
        SentencePieceVocabulary.from_file(path, {"<pad>": AddedToken(5)})


def test_tokens_of_phi3_swallow_the_space_behind_them(
    original: sentencepiece.SentencePieceProcessor, tmp_path: Path
) -> None:
    fields = fields_of(original) | {"general.architecture": "phi3", "phi3.context_length": 128}
    for key, value in (("tokens", "<|user|>"), ("scores", -1.0), ("token_type", int(TokenType.CONTROL))):
        fields[f"tokenizer.ggml.{key}"] = [*fields[f"tokenizer.ggml.{key}"], value]
    tokenizer = Tokenizer.from_gguf(metadata_of(tmp_path, fields))
    assert tokenizer.decode(tokenizer.encode("<|user|>\n\nthe</s> boat", add_special_tokens=False)) == " the boat"
    assert tokenizer.decode(tokenizer.encode("<s>\nthe", add_special_tokens=False)) == " \nthe"


def test_an_added_token_may_have_a_zero_in_it(tmp_path: Path) -> None:
    """SentencePiece's own pieces have none."""
    original = train()
    size, path = original.vocab_size(), tmp_path / "tokenizer.model"
    path.write_bytes(original.serialized_model_proto())
    added = {"a\0\u2581b": AddedToken(size, is_special=False), "\0": AddedToken(size + 1, is_special=False)}
    with_zeros = SentencePieceVocabulary.from_file(path, added)
    assert with_zeros.token_bytes == [*SentencePieceVocabulary.from_file(path).token_bytes, b"a\0 b", b"\0"]
