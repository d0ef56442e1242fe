"""A text model whose tokens are bytes: token i is byte i, and a few control tokens follow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Any, cast

from server.media.picture_format import PictureFormat
from server.text.chat_template import ChatTemplate
from server.text.infill import Infill
from server.text.label_head import LabelHead
from server.text.pair_prompt import AnswerTokens, PairPrompt
from server.text.sentence_encoder import SentenceEncoder
from server.text.text_model import TextModel
from server.text.tokenization.control_tokens import ControlTokens, ShieldedText
from server.text.tokenization.native_errors import TooManyTokens

BOS, EOS, TURN, END_OF_TURN = 256, 257, 258, 259
CONTROL_TOKENS = ("<b>", "<e>", "<t>", "</t>")
CHAT_TEMPLATE = (
    "{# tools: has a place for them, and writes none of them #}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


class FakeTokenizer:
    vocab_size = 260
    max_token_bytes = 4
    eos_token_ids = (EOS,)
    token_bytes = tuple([bytes([value]) for value in range(256)] + [b""] * 4)

    control = ControlTokens({})
    prefix_ids = suffix_ids = ()
    between_ids = (EOS,)

    def encode(self, text: str, *, add_special_tokens: bool, max_tokens: int | None = None) -> list[int]:
        token_ids = list(text.encode())
        if max_tokens is not None and len(token_ids) > max_tokens:
            raise TooManyTokens(len(token_ids))
        return token_ids

    num_prefix_tokens = 0

    def encode_parts(self, parts: Sequence[str | int], *, max_tokens: int | None = None) -> list[int]:
        return [token for part in parts for token in ([part] if isinstance(part, int) else part.encode())]

    def refuse_far_too_long(self, text: str, max_tokens: int | None) -> None:
        pass

    def encode_shielded(self, shielded: ShieldedText, *, max_tokens: int | None = None) -> list[int]:
        return self.encode(shielded.plain, add_special_tokens=False, max_tokens=max_tokens)

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(self.token_bytes[token_id] for token_id in token_ids).decode(errors="replace")

    def decode_with_names(self, token_ids: Sequence[int]) -> str:
        data = b"".join([self.token_bytes[each] or self.token_text(each).encode() for each in token_ids])
        return data.decode("utf-8", errors="replace")

    def token_text(self, token_id: int) -> str:
        return chr(token_id) if token_id < 256 else CONTROL_TOKENS[token_id - 256]

    def token_ids_with(self, texts: Collection[str]) -> tuple[int, ...]:
        return tuple(
            token_id for token_id in range(self.vocab_size) if any(text in self.token_text(token_id) for text in texts)
        )


class FakeTextModel:
    name = "fake"
    infill: Infill | None = None
    sentences: SentenceEncoder | None = None
    head: LabelHead | None = None
    pairs: PairPrompt | None = None
    answers: AnswerTokens | None = None
    ignores_media = False
    pictures: PictureFormat | None = None

    def __init__(self, chat_template: str | None = CHAT_TEMPLATE, **sampling_defaults: float) -> None:
        self.sampling_defaults = sampling_defaults
        self.tokenizer = FakeTokenizer()
        self.chat_template = None if chat_template is None else ChatTemplate(chat_template)

    def with_defaults(self, sampling: Mapping[str, Any], variables: Mapping[str, Any]) -> TextModel:
        changed = copy(self)
        changed.sampling_defaults = {**self.sampling_defaults, **sampling}
        if self.chat_template is not None:
            changed.chat_template = self.chat_template.with_defaults(variables)
        return changed.model

    @property
    def model(self) -> TextModel:
        """As the server's signatures want it."""
        return cast(TextModel, self)


def render(*messages: Mapping[str, Any]) -> str:
    """What the fake's chat template makes of `messages`, by hand."""
    return "".join(f"{message['role']}:{message['content']}\n" for message in messages) + "assistant:"
