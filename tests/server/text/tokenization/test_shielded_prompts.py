"""Prompts of every kind of tokenizer: no message writes a control token, and all else has the tokens that it had."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import mkdtemp

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as LibraryTokenizer

from server.text.chat_template import ChatTemplate, ChatTemplateError
from server.text.tokenization.control_tokens import MARKS, ControlTokens
from server.text.tokenization.control_tokens import AddedToken as VocabularyToken
from server.text.tokenization.gguf_metadata import TokenType
from server.text.tokenization.sentencepiece_vocabulary import SentencePieceVocabulary, SpacePrefix
from server.text.tokenization.tokenizer_json import TokenizerJson
from server.text.tokenizer import Tokenizer
from tests.model_folders import byte_level_tokenizer
from tests.server.support.gguf_files import byte_level_fields, metadata_of
from tests.server.text.tokenization.test_control_tokens import IDS, MARK, NAMES, contents
from tests.server.text.tokenization.test_sentencepiece_vocabulary import fields_of, train, trained_model
from tests.thoroughness import IS_FULL

TEMPLATES = {
    "plain": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "trimmed": "{% for m in messages %}<s>{{ m.name }}{{ m.content | trim }}</s>{% endfor %}",
    "concatenated": "{% for m in messages %}{{ m.name }}{{ m.content }}{% endfor %}",
    "sliced": (
        "{% for m in messages %}<|im_start|>{{ m.content.split('</think>')[0].rstrip('\\n') }}"
        "{{ m.content.split('</think>')[-1].lstrip('\\n') }}<|im_end|>{% endfor %}"
    ),
    "cut out": (
        "{% for m in messages %}<s>{{ m.content.replace('<think>', '').replace('</think>', '') }}</s>{% endfor %}"
    ),
    "asked": (
        "{% for m in messages %}{% if m.content.startswith('<tool_response>') %}<s>{% else %}</s>{% endif %}"
        "[INST]{{ m.content }}[/INST]{% endfor %}"
    ),
    "opened by the template": "{% for m in messages %}<|im_{{ m.content }}|>[{{ m.name }}]{% endfor %}",
    "built of the role": "{% for m in messages %}{{ '<|im_' + m.role + '|>' }}{{ m.content }}<s>{% endfor %}",
}


def byte_level() -> Tokenizer:
    fields = byte_level_fields()
    fields["tokenizer.ggml.tokens"] += NAMES[2:]
    fields["tokenizer.ggml.token_type"] += [int(TokenType.CONTROL)] * len(NAMES[2:])
    fields["tokenizer.ggml.token_type"][2] = int(TokenType.USER_DEFINED)  # <|im_end|>, by its name alone
    return Tokenizer.from_gguf(metadata_of(Path(mkdtemp()), fields))


def of_json(tokenizer: LibraryTokenizer) -> Tokenizer:
    vocabulary = TokenizerJson.read(Path("tokenizer.json"), tokenizer.to_str())
    return Tokenizer(vocabulary, bos_token_id=None, eos_token_ids=())


def json_byte_level() -> Tokenizer:
    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens(list(NAMES))
    return of_json(tokenizer)


def json_metaspace() -> Tokenizer:
    """Spaces are marked, and one is put before the text; <|im_end|> takes away the spaces that follow."""
    pieces = [*NAMES, "<unk>", "\u2581", "h", "e", "l", "o", "<", "|", "s", ">", "/", "im_", "end"]
    tokenizer = LibraryTokenizer(
        models.Unigram([(piece, -float(number)) for number, piece in enumerate(pieces)], len(NAMES))
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([name for name in NAMES if name != "<|im_end|>"])
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", rstrip=True, normalized=False, special=True)])
    return of_json(tokenizer)


def json_normalized() -> Tokenizer:
    """Finds control tokens in the normalized text, whatever the client calls them."""
    tokenizer = byte_level_tokenizer()
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.add_special_tokens([AddedToken(name, normalized=True, special=True) for name in NAMES])
    return of_json(tokenizer)


def sentencepiece_gguf() -> Tokenizer:
    fields = fields_of(train())
    fields["tokenizer.ggml.tokens"] += NAMES[:2] + NAMES[4:]
    fields["tokenizer.ggml.token_type"] += [int(TokenType.USER_DEFINED)] * 2 + [int(TokenType.CONTROL)] * 3
    fields["tokenizer.ggml.scores"] += [0.0] * 5
    return Tokenizer.from_gguf(metadata_of(Path(mkdtemp()), fields))


def sentencepiece_file() -> Tokenizer:
    """Of some control tokens only other files than the model tell; one takes away the spaces that follow."""
    model = trained_model(control_symbols=[NAMES[0], *NAMES[5:]])
    path = Path(mkdtemp()) / "tokenizer.model"
    path.write_bytes(model)
    size = sentencepiece.SentencePieceProcessor(model_proto=model).vocab_size()
    added = {
        "<|im_end|>": VocabularyToken(size, strips_right=True),  # a control token by its name alone
        "[INST]": VocabularyToken(size + 1, is_special=True),
        "<think>": VocabularyToken(size + 3),
    }
    vocabulary = SentencePieceVocabulary.from_file(path, added, SpacePrefix.FIRST)
    return Tokenizer(vocabulary, bos_token_id=None, eos_token_ids=())


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "tokenizer.json": json_byte_level,
    "tokenizer.json, spaces marked": json_metaspace,
    "tokenizer.json, normalized": json_normalized,
    "SentencePiece GGUF": sentencepiece_gguf,
    "SentencePiece file": sentencepiece_file,
}
KEEPS_TEXT = ("byte-level", "tokenizer.json")  # of others, spaces and unknown characters may change


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    return KINDS[kind]()


def names_found(tokenizer: Tokenizer, token_ids: list[int]) -> list[str]:
    names = {token_id: name for name, token_id in tokenizer.control.ids.items()}
    return [names[token_id] for token_id in token_ids if token_id in names]


def names_written(template: str, messages: list[dict[str, str]], control: ControlTokens) -> list[str]:
    """The control tokens of the template itself: those of a text in which no message has any."""
    harmless = ChatTemplate(template).render([{**m, **{key: "" for key in m if key != "role"}} for m in messages])
    ids = {token_id: name for name, token_id in control.ids.items()}
    return [ids[part] for part in control.split(harmless) if isinstance(part, int)]


messages_of = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["start", "end", "user"]), "content": contents, "name": contents}),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize(("kind", "template"), list(product(KINDS, TEMPLATES)))
@settings(max_examples=40 if IS_FULL else 15, deadline=None)
@given(messages=messages_of)
def test_no_message_writes_a_control_token(kind: str, template: str, messages: list[dict[str, str]]) -> None:
    tokenizer, source = tokenizer_of(kind), TEMPLATES[template]
    shielded = ChatTemplate(source).render_shielded(messages, tokenizer.control)
    token_ids = tokenizer.encode_shielded(shielded)
    found = names_found(tokenizer, token_ids)
    if template == "asked":  # which of two tokens it writes depends on the content
        starts = ["<s>" if m["content"].startswith("<tool_response>") else "</s>" for m in messages]
        expected = [name for start in starts for name in (start, "[INST]", "[/INST]") if name in tokenizer.control.ids]
    else:
        expected = names_written(source, messages, tokenizer.control)
    assert found == expected
    if template != "cut out":
        assert shielded.plain == ChatTemplate(source).render(messages)
    if kind in KEEPS_TEXT:
        assert text_of(tokenizer, token_ids) == shielded.plain


def text_of(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    """The text, names of control tokens included."""
    names = {token_id: name.encode() for name, token_id in tokenizer.control.ids.items()}
    return b"".join(names.get(i, tokenizer.token_bytes[i]) for i in token_ids).decode("utf-8", errors="replace")


harmless_texts = st.text(
    alphabet=st.one_of(st.sampled_from("ab <>[]|/s\n"), st.characters(codec="utf-8")), max_size=20
).filter(lambda text: not any(name in text for name in NAMES))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "tokenizer.json, normalized"])
@settings(max_examples=60, deadline=None)
@given(texts=st.lists(harmless_texts, min_size=1, max_size=3))
def test_other_prompts_have_the_tokens_that_they_had(kind: str, texts: list[str]) -> None:
    tokenizer, template = tokenizer_of(kind), ChatTemplate(TEMPLATES["plain"])
    messages = [{"role": "user", "content": text} for text in texts]
    expected = tokenizer.encode(template.render(messages), add_special_tokens=False)
    assert tokenizer.encode_shielded(template.render_shielded(messages, tokenizer.control)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_beside_a_name_that_is_text_the_others_have_the_tokens_that_they_had(kind: str) -> None:
    """The way that is taken where a message has a name, compared with the usual one."""
    tokenizer = tokenizer_of(kind)
    text = "<s> hello<|im_start|>hello </s>o <|im_end|>  hello"
    parts = list(tokenizer.control.split(text))
    assert any(isinstance(part, int) for part in parts)
    assert tokenizer._vocabulary.encode_parts(parts, MARK) == tokenizer.encode(text, add_special_tokens=False)


def test_a_name_that_the_vocabulary_itself_would_make_is_spelled() -> None:
    tokenizer = tokenizer_of("tokenizer.json, spaces marked")  # its pieces have the names as well
    messages = [{"role": "user", "content": "</s>"}]
    token_ids = tokenizer.encode_shielded(
        ChatTemplate("{{ messages[0].content }}").render_shielded(messages, tokenizer.control)
    )
    assert [tokenizer.token_text(token_id) for token_id in token_ids] == ["\u2581", "<", "/", "s", ">"]


def test_a_name_that_is_normalized_is_text_too() -> None:
    tokenizer = tokenizer_of("tokenizer.json, normalized")
    wide = "\uff1c/s\uff1e"
    assert names_found(tokenizer, tokenizer.encode(wide, add_special_tokens=False)) == ["</s>"]
    template = ChatTemplate("{{ messages[0].content }}<s>")
    shielded = template.render_shielded([{"role": "user", "content": wide}], tokenizer.control)
    assert names_found(tokenizer, tokenizer.encode_shielded(shielded)) == ["<s>"]


def test_messages_with_every_mark_are_refused() -> None:
    template = ChatTemplate("{{ messages[0].content }}")
    with pytest.raises(ChatTemplateError, match=r"all of the noncharacters U\+FDD1 to U\+FDEF"):
        template.render_shielded([{"role": "user", "content": "".join(MARKS)}], ControlTokens(IDS))


def test_arguments_of_the_template_are_shielded_too() -> None:
    tokenizer = tokenizer_of("tokenizer.json")
    template = ChatTemplate("<s>{{ tools | tojson }}{{ messages[0].tool_calls[0].arguments.x }}")
    messages = [{"role": "assistant", "content": None, "tool_calls": [{"arguments": {"x": "</s>"}}]}]
    shielded = template.render_shielded(messages, tokenizer.control, tools=[{"</s>": "</s>"}])
    assert shielded.plain == '<s>[{"</s>": "</s>"}]</s>'
    assert names_found(tokenizer, tokenizer.encode_shielded(shielded)) == ["<s>"]


def test_an_open_message_is_shielded_to_its_end() -> None:
    tokenizer = tokenizer_of("tokenizer.json")
    template = ChatTemplate("<s>{{ messages[0].content }}</s>")
    message = {"role": "assistant", "content": "a</s>"}
    shielded = template.render_shielded(
        [message], tokenizer.control, add_generation_prompt=False, continue_final_message=True
    )
    assert shielded.plain == "<s>a</s>"
    assert names_found(tokenizer, tokenizer.encode_shielded(shielded)) == ["<s>"]
