"""What a prompt is made from: a text, token ids, or a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from sampling.host.params import InvalidParameter
from server.text.chat_template import ChatTemplateError
from server.text.text_model import TextModel
from server.wire.errors import ApiError

MESSAGE_CHARS = 32  # what a message costs beside its text, in characters


class PromptSource(Protocol):
    """One prompt before it is token ids."""

    @property
    def num_chars(self) -> int:
        """How much text there is to tokenise."""
        ...

    def encode(self, text_model: TextModel, max_model_len: int | None = None) -> list[int]:
        """The prompt's token ids; their number and range are unchecked.

        Args:
            max_model_len: in tokens; where it is given, a text that must have more is refused before it is tokenised.

        Raises:
            ApiError: the model has no chat template, or the template refuses the messages.
            InvalidParameter: the text is far too long.
        """
        ...


class TextPrompt(NamedTuple):
    """A text that the model goes on with."""

    text: str

    @property
    def num_chars(self) -> int:
        return len(self.text)

    def encode(self, text_model: TextModel, max_model_len: int | None = None) -> list[int]:
        _refuse_hopeless(self.text, text_model, max_model_len)
        return text_model.tokenizer.encode(self.text, add_special_tokens=True)


class TokenPrompt(NamedTuple):
    """Token ids, which need no tokenizer."""

    token_ids: list[int]

    @property
    def num_chars(self) -> int:
        return 0

    def encode(self, text_model: TextModel, max_model_len: int | None = None) -> list[int]:
        return self.token_ids


class Conversation(NamedTuple):
    """Messages as chat templates know them, each with `role` and `content`."""

    messages: Sequence[Mapping[str, str]]

    @property
    def num_chars(self) -> int:
        return sum(len(message["content"]) + MESSAGE_CHARS for message in self.messages)

    def encode(self, text_model: TextModel, max_model_len: int | None = None) -> list[int]:
        if text_model.chat_template is None:
            raise ApiError(
                f"the model {text_model.name} has no chat template; use /v1/completions",
                param="messages",
                code="no_chat_template",
            )
        try:
            text = text_model.chat_template.render(self.messages)
        except ChatTemplateError as error:
            raise ApiError(str(error), param="messages", code="invalid_messages") from error
        _refuse_hopeless(text, text_model, max_model_len)
        # The template writes the control tokens itself, the first one included.
        return text_model.tokenizer.encode(text, add_special_tokens=False)


def _refuse_hopeless(text: str, text_model: TextModel, max_model_len: int | None) -> None:
    """Refuses a text that is too long whatever its tokens are, because a token has a largest number of characters."""
    fewest = len(text) // text_model.tokenizer.max_token_bytes
    if max_model_len is not None and fewest >= max_model_len:
        raise InvalidParameter(
            "prompt",
            f"the prompt has {len(text)} characters and so at least {fewest} tokens; "
            f"the model's context is {max_model_len} tokens, prompt and output together",
        )
