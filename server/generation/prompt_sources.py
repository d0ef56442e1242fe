"""What a prompt is made from: a text, token ids, or a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self

from engine.interface.context_overflow import ContextOverflow
from server.generation.roles import left_out_role, other_role
from server.media.decoded_picture import DecodedPicture
from server.media.picture import Picture, pictures_of, text_of, with_paths, without_pictures
from server.media.picture_format import PictureFormat
from server.protocol.errors import ApiError
from server.protocol.json_limits import is_deeper, size_of
from server.text.chat_template import ChatTemplate, ChatTemplateError
from server.text.conversation_forms import (
    as_texts,
    described_tool,
    forms_of,
    leaves_out_system,
    with_described_tools,
    with_early_system,
)
from server.text.template_limits import PromptTextTooLong, inline_template_limits
from server.text.text_model import TextModel
from server.text.tokenization.control_tokens import ShieldedText
from server.text.tokenization.native_errors import TooManyTokens

# Text above this many characters is tokenised in a worker thread: 2 KiB take half a millisecond, and three where the
# text is a strange one. Every stream waits for it, and many such requests may come together.
MAX_INLINE_CHARS = 2 << 10
MAX_INLINE_SECONDS = 0.005  # that a chat template may take while the other streams wait
MAX_WRITTEN_CHARS = 4 * MAX_INLINE_CHARS  # that it may write then: its own words stand beside those of the client
MAX_LISTED_TOKENS = 64 << 10  # of a prompt that is too long; a list of as many ids takes 2 ms
MESSAGE_CHARS = 32  # what a message, or a text among token ids, costs beside its text, in characters
VALUE_CHARS = 4  # what a value of JSON does, about as it is written
COUNTED_CHARS = 16 << 10  # of a conversation; the largest number that anyone compares `num_chars` with
MAX_DEPTH = 250  # of lists and objects in what a template is told; what walks over them calls itself at each level


class PromptSource(Protocol):
    """One prompt before it is token ids."""

    @property
    def num_chars(self) -> int:
        """How much text there is to tokenise, counted in little time: up to some number above COUNTED_CHARS."""
        ...

    @property
    def pictures(self) -> Sequence[Picture]:
        """The pictures of a conversation, in their order."""
        ...

    @property
    def decoded(self) -> Sequence[DecodedPicture]:
        """The same as the model takes them; empty before `with_decoded`."""
        ...

    def with_decoded(self, decoded: Mapping[Picture, DecodedPicture]) -> Self:
        """The same prompt with its pictures, for a model that sees; without them it cannot be encoded."""
        ...

    @property
    def tools(self) -> Sequence[Mapping[str, Any]] | None:
        """Those that a conversation tells the model of; None of a prompt that is no conversation."""
        ...

    def encode(self, text_model: TextModel, max_model_len: int | None = None, *, is_brief: bool = False) -> list[int]:
        """The prompt's token ids; their number and range are unchecked.

        Args:
            max_model_len: in tokens; where it is given, a text that must have more is refused before it is tokenised.
            is_brief: whether a chat template may take only MAX_INLINE_SECONDS and write only MAX_WRITTEN_CHARS.

        Raises:
            ApiError: the model has no chat template, the template refuses the messages, or what it is told beside them
                is nested too deeply.
            ContextOverflow: the text is far too long.
            TemplateTimeout, PromptTextTooLong: with `is_brief`, beyond these limits.
        """
        ...


class TextPrompt(NamedTuple):
    """A text that the model continues."""

    text: str
    adds_special: bool = True  # whether the tokenizer puts its own tokens, such as a begin-of-sequence token, before it
    pictures: tuple[()] = ()
    decoded: tuple[()] = ()
    tools: None = None

    @property
    def num_chars(self) -> int:
        return len(self.text)

    def with_decoded(self, decoded: Mapping[Picture, DecodedPicture]) -> Self:
        return self

    def encode(self, text_model: TextModel, max_model_len: int | None = None, *, is_brief: bool = False) -> list[int]:
        _refuse_hopeless(len(self.text), text_model, max_model_len)
        try:
            text_model.tokenizer.refuse_far_too_long(self.text, max_model_len)
            most = _num_listed(max_model_len)
            return text_model.tokenizer.encode(self.text, add_special_tokens=self.adds_special, max_tokens=most)
        except TooManyTokens as error:
            raise _too_many(error, max_model_len) from error


class InfillPrompt(NamedTuple):
    """What stands before a gap and behind it; the model fills the gap. No text of it becomes a control token."""

    before: str | list[int]
    behind: str
    context: str = ""  # pieces of other files, which come first
    pictures: tuple[()] = ()
    decoded: tuple[()] = ()
    tools: None = None

    @property
    def num_chars(self) -> int:
        return len(self.context) + len(self.behind) + (len(self.before) if isinstance(self.before, str) else 0)

    def with_decoded(self, decoded: Mapping[Picture, DecodedPicture]) -> Self:
        return self

    def encode(self, text_model: TextModel, max_model_len: int | None = None, *, is_brief: bool = False) -> list[int]:
        if text_model.infill is None:
            raise ApiError(
                f"suffix is given, and the model {text_model.name} has no tokens for filling a gap; "
                "a model for code such as Qwen2.5-Coder has them",
                param="suffix",
                code="unsupported_parameter",
            )
        _refuse_hopeless(self.num_chars, text_model, max_model_len)
        before = [self.before] if isinstance(self.before, str) else self.before
        try:
            for text in (part for part in (self.context, *before, self.behind) if isinstance(part, str)):
                text_model.tokenizer.refuse_far_too_long(text, max_model_len)
            parts = text_model.infill.parts(before, self.behind)
            if self.context:
                parts = [self.context, *parts]
            return text_model.tokenizer.encode_parts(parts, max_tokens=_num_listed(max_model_len))
        except TooManyTokens as error:
            raise _too_many(error, max_model_len) from error


class MixedPrompt(NamedTuple):
    """Texts and token ids in one prompt."""

    parts: list[int | str]
    pictures: tuple[()] = ()
    decoded: tuple[()] = ()
    tools: None = None

    @property
    def num_chars(self) -> int:
        return sum(len(part) + MESSAGE_CHARS for part in self.parts if isinstance(part, str))  # each is encoded alone

    def with_decoded(self, decoded: Mapping[Picture, DecodedPicture]) -> Self:
        return self

    def encode(self, text_model: TextModel, max_model_len: int | None = None, *, is_brief: bool = False) -> list[int]:
        num_chars = sum(len(part) for part in self.parts if isinstance(part, str))
        _refuse_hopeless(num_chars, text_model, max_model_len)
        tokenizer, most = text_model.tokenizer, _num_listed(max_model_len)
        token_ids: list[int] = []
        try:
            for index, part in enumerate(self.parts):
                if isinstance(part, int):
                    token_ids.append(part)
                else:
                    token_ids += tokenizer.encode(part, add_special_tokens=index == 0, max_tokens=most)
        except TooManyTokens as error:
            raise _too_many(error, max_model_len) from error
        return token_ids


class TokenPrompt(NamedTuple):
    """Token ids, which need no tokenizer."""

    token_ids: list[int]
    pictures: tuple[()] = ()
    decoded: tuple[()] = ()
    tools: None = None

    @property
    def num_chars(self) -> int:
        return 0

    def with_decoded(self, decoded: Mapping[Picture, DecodedPicture]) -> Self:
        return self

    def encode(self, text_model: TextModel, max_model_len: int | None = None, *, is_brief: bool = False) -> list[int]:
        return self.token_ids


class Conversation(NamedTuple):
    """Messages as chat templates know them, each with `role` and `content`."""

    messages: Sequence[Mapping[str, Any]]
    parse_special: bool = False  # whether names of control tokens in messages become those tokens
    tools: Sequence[Mapping[str, Any]] = ()  # that the template tells the model of
    begins_turn: bool = True  # whether the prompt ends with the beginning of an assistant's turn
    continues: bool = False  # whether the last message is left open, so that the answer goes on with it
    variables: Mapping[str, Any] = MappingProxyType({})  # more that the template is told
    plain_messages: Sequence[Mapping[str, Any]] | None = None  # the same told simpler, where the template refuses it
    decoded_pictures: Mapping[Picture, DecodedPicture] = MappingProxyType({})
    switches: str = ""  # the `mm_processor_kwargs` of its pictures, as JSON

    @property
    def num_chars(self) -> int:
        num_chars = 0
        for message in self.messages:
            num_chars += MESSAGE_CHARS
            for part in message.values():  # its text, its reasoning, its name, calls of tools
                is_text = isinstance(part, str)
                num_chars += len(part) if is_text else size_of(part, COUNTED_CHARS - num_chars, VALUE_CHARS)
            if num_chars > COUNTED_CHARS:
                return num_chars
        for more in (list(self.tools), dict(self.variables)):
            num_chars += size_of(more, COUNTED_CHARS - num_chars, VALUE_CHARS) if more else 0
        return num_chars

    def encode(self, text_model: TextModel, max_model_len: int | None = None, *, is_brief: bool = False) -> list[int]:
        self.refuse_deep()
        return self.encode_checked(text_model, max_model_len, is_brief=is_brief)

    def render(self, text_model: TextModel) -> str:
        """The text of the prompt. Raises what `encode` raises."""
        self.refuse_deep()
        shown = self.shown_to(text_model)
        template = _template_of(text_model)
        return shown._render(template, text_model, shown._contents, None, is_brief=False)[0]

    @property
    def pictures(self) -> Sequence[Picture]:
        """The pictures of all messages, in their order."""
        found = pictures_of(self.messages)
        return tuple(replace(each, switches=self.switches) for each in found) if self.switches else tuple(found)

    @property
    def decoded(self) -> Sequence[DecodedPicture]:
        """The pictures of all messages as the model takes them; empty before `with_decoded`."""
        known = self.decoded_pictures
        return [known[picture] for picture in self.pictures] if known else ()

    def with_decoded(self, decoded: Mapping[Picture, DecodedPicture]) -> Self:
        """The same conversation with its pictures, for a model that sees."""
        return self._replace(decoded_pictures=decoded)

    def with_paths(self, rename: Callable[[str], str]) -> Conversation:
        """The same conversation with other paths of its pictures."""
        return self._replace(
            messages=[{**message, "content": with_paths(message["content"], rename)} for message in self.messages]
        )

    def shown_to(self, text_model: TextModel) -> Conversation:
        """The conversation as a model reads it; raises ApiError for a picture where it reads text alone."""
        if text_model.pictures is not None:
            return self
        messages = without_pictures(self.messages, ignores=text_model.ignores_media)
        plain = self.plain_messages
        if messages is self.messages:
            return self
        if plain is not None:
            plain = without_pictures(plain, ignores=True)  # those of users are refused by now, or may be left out
        return self._replace(messages=messages, plain_messages=plain)

    def _known_to(self, template: ChatTemplate) -> Conversation:
        """The conversation as texts as far as the template has no place for tools, calls and results."""
        conversation = self
        if not template.takes_results and any(
            message["role"] == "tool" or message.get("tool_calls") for message in self.messages
        ):
            texts = as_texts(self.messages) if self.plain_messages is None else self.plain_messages
            conversation = conversation._replace(messages=texts, plain_messages=None)
        if self.tools and not template.takes_tools:
            described = with_described_tools(conversation.messages, self.tools)
            conversation = conversation._replace(messages=described, tools=(), plain_messages=None)
        return conversation

    @property
    def _contents(self) -> str:
        """The texts of all messages; only what every template writes: many leave out the reasoning of earlier turns."""
        return "".join([text_of(message["content"]) for message in self.messages])

    def encode_checked(
        self,
        text_model: TextModel,
        max_model_len: int | None = None,
        most_tokens: int | None = None,
        *,
        is_brief: bool = False,
    ) -> list[int]:
        """`encode` where `refuse_deep` has passed, of this conversation or of one of which this is a part.

        Args:
            most_tokens: a conversation of more is refused, without the work of counting how many they are.
        """
        template = _template_of(text_model)
        shown = self.shown_to(text_model)._known_to(template)
        contents = shown._contents
        _refuse_hopeless(len(contents), text_model, max_model_len)
        tokenizer, most = text_model.tokenizer, most_tokens
        if most is None and max_model_len is not None:
            most = max(max_model_len, MAX_LISTED_TOKENS)
        try:
            text, shielded = shown._render(
                template, text_model, contents, most_tokens or max_model_len, is_brief=is_brief
            )
            if max_model_len is not None and len(text) >= max_model_len:
                _refuse_hopeless(len(text), text_model, max_model_len)
            if is_brief and len(text) > MAX_WRITTEN_CHARS:
                raise PromptTextTooLong(len(text))
            # The template writes the control tokens itself, the first one included.
            if shielded is None:
                return tokenizer.encode(text, add_special_tokens=False, max_tokens=most)
            return tokenizer.encode_shielded(shielded, max_tokens=most)
        except TooManyTokens as error:
            raise _too_many(error, max_model_len) from error

    def refuse_deep(self) -> None:
        """Raises ApiError where what the template gets beside texts is nested more deeply than MAX_DEPTH."""
        parts: list[object] = [message["tool_calls"] for message in self.messages if "tool_calls" in message]
        parts += self.tools
        parts += self.variables.values()
        if parts and is_deeper(parts, MAX_DEPTH):
            raise ApiError(
                "a tool, a call of one or a variable of the template is nested too deeply",
                param="messages",
                code="invalid_messages",
            )

    def _render(
        self, template: ChatTemplate, text_model: TextModel, contents: str, max_tokens: int | None, *, is_brief: bool
    ) -> tuple[str, ShieldedText | None]:
        """The prompt, and the same with marks unless names of control tokens in it are to become those tokens.

        Raises ApiError where the template refuses the messages, TooManyTokens for the contents alone.
        """
        text_model.tokenizer.refuse_far_too_long(contents, max_tokens)  # before the work of rendering
        variables: dict[str, Any] = {
            **self.variables,
            **({"tools": list(self.tools)} if self.tools else {}),
            "add_generation_prompt": self.begins_turn,
            "continue_final_message": self.continues,
        }
        refusal: ChatTemplateError | None = None
        with inline_template_limits(MAX_INLINE_SECONDS) if is_brief else nullcontext():
            for messages, more in self._forms():
                try:
                    rendered = self._render_form(template, text_model, messages, {**variables, **more})
                except ChatTemplateError as error:
                    refusal = refusal or error  # the first says it of what the client has sent
                    continue
                unknown = left_out_role(rendered[0], self.messages)
                if unknown is not None:
                    raise _unknown_role(unknown)
                return self._with_system(rendered, template, text_model, {**variables, **more})
        role = other_role(self.messages)
        if role is not None:
            raise _unknown_role(role, refusal) from refusal
        raise ApiError(str(refusal), param="messages", code="invalid_messages") from refusal

    def _render_form(
        self,
        template: ChatTemplate,
        text_model: TextModel,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
    ) -> tuple[str, ShieldedText | None]:
        """`_render` of one form of the conversation; raises ChatTemplateError where the template refuses it."""
        form = text_model.pictures
        if self.parse_special:
            return self._with_pictures(template.render(messages, **variables), form), None
        shielded = template.render_shielded(messages, text_model.tokenizer.control, **variables)
        shielded = shielded._replace(text=self._with_pictures(shielded.text, form))
        return shielded.plain, shielded

    def _with_system(
        self,
        rendered: tuple[str, ShieldedText | None],
        template: ChatTemplate,
        text_model: TextModel,
        variables: Mapping[str, Any],
    ) -> tuple[str, ShieldedText | None]:
        """The prompt with all system messages, if the template takes a form in which it leaves out none."""
        if self.continues or not leaves_out_system(rendered[0], self.messages):
            return rendered
        for messages in with_early_system(self.messages):
            try:
                other = self._render_form(template, text_model, messages, variables)
            except ChatTemplateError:
                continue
            if not leaves_out_system(other[0], self.messages):
                return other
        return rendered

    def _with_pictures(self, text: str, form: PictureFormat | None) -> str:
        """A rendered text in which each picture has all its positions; raises ApiError where one has no place.

        Texts of messages do not have the marker: it is the name of a control token, which they are shielded from.
        """
        pictures = self.pictures if form is not None else ()
        if form is None or not pictures:
            return text
        places = form.marker_pattern.findall(text)
        if places != [form.marker_of(picture) for picture in pictures]:
            raise ApiError(
                f"the prompt has {len(pictures)} pictures and {len(places)} places for them: the chat template leaves "
                f"some out, or parse_special lets a message write {form.marker}",
                param=pictures[0].path,
                code="invalid_messages",
            )
        pieces = form.marker_pattern.split(text)
        texts = [self.decoded_pictures[picture].text for picture in pictures]
        return pieces[0] + "".join([text + piece for text, piece in zip(texts, pieces[1:], strict=True)])

    def _forms(self) -> Iterator[tuple[Sequence[Mapping[str, Any]], Mapping[str, Any]]]:
        """The conversation as it is, and then the forms of it that a template may take; with variables for each."""
        yield self.messages, {}
        if self.continues:
            if self.plain_messages is not None:
                yield self.plain_messages, {}
            return
        described = {"tools": [described_tool(tool) for tool in self.tools]}  # also where there are none
        if described["tools"] != list(self.tools) or not self.tools:
            yield self.messages, described
        for messages in forms_of(self.messages):
            yield messages, {}
        if self.plain_messages is not None:
            yield self.plain_messages, {}


def _unknown_role(role: str, refusal: ChatTemplateError | None = None) -> ApiError:
    words = "leaves its message out" if refusal is None else f"says: {refusal}"
    return ApiError(
        f"a message has the role {role}, which the chat template of this model does not know; it {words}",
        param="messages",
        code="invalid_messages",
    )


def _template_of(text_model: TextModel) -> ChatTemplate:
    """
    Raises:
        ApiError: the model has no chat template.
    """
    if text_model.chat_template is None:
        raise ApiError(
            f"the model {text_model.name} has no chat template; use /v1/completions",
            param="messages",
            code="no_chat_template",
        )
    return text_model.chat_template


def _num_listed(max_model_len: int | None) -> int | None:
    """The most tokens of a prompt that are listed; more than are allowed, so that an error usually tells how many."""
    return None if max_model_len is None else max(max_model_len, MAX_LISTED_TOKENS)


def _too_many(error: TooManyTokens, max_model_len: int | None) -> ContextOverflow:
    return ContextOverflow(
        "prompt",
        f"the prompt has at least {error.num_tokens} tokens",
        limit=max_model_len or 0,
        num_tokens=error.num_tokens,
    )


def _refuse_hopeless(num_chars: int, text_model: TextModel, max_model_len: int | None) -> None:
    """Refuses a text that is too long whatever its tokens are, because a token has a largest number of characters."""
    fewest = num_chars // text_model.tokenizer.max_token_bytes
    if max_model_len is not None and fewest >= max_model_len:
        raise ContextOverflow(
            "prompt",
            f"the prompt has {num_chars} characters and so at least {fewest} tokens",
            limit=max_model_len,
            num_tokens=fewest,
        )
