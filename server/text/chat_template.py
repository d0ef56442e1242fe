"""Renders chat messages into a prompt with the model's jinja2 chat template."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from datetime import UTC, datetime
from itertools import chain
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser

from server.media.picture import is_picture
from server.media.video import Video
from server.text.template_limits import TemplateTimeout, current_budget, running_template
from server.text.template_sandbox import TemplateSandbox
from server.text.tokenization.control_tokens import MARKS, ControlTokens, ShieldedText, choose_mark
from server.text.tokenization.gguf_metadata import TEMPLATE_VARIANTS

Message = Mapping[str, Any]

# Marks the end of the last message in the rendered text. It is a Unicode noncharacter, so no text has it.
END_OF_CONTENT = "\ufdd0"

MAX_SOURCE_CHARS = 1 << 17  # compiling takes more than linear time, much of it without a pause
MAX_REASON_CHARS = 1000  # of the reason why a template fails
_PROBE = "Hello, template"

# What a template's source has that writes the tools, and the results of calls.
_TOOLS = re.compile(r"\b(?:tools|xml_tools|functions)\b")
_RESULTS = re.compile(r"\btool|ipython")

# A model may have templates of their own for conversations in which one of these variables is given.
VARIANTS = dict(zip(("tools", "documents"), TEMPLATE_VARIANTS, strict=True))


class ChatTemplateError(ValueError):
    """The template is broken, rejects the messages, or fails on them; the message says which."""


class ChatTemplate:
    """A model's chat template, rendered as Hugging Face transformers renders it, within limits (`template_limits`).

        template = ChatTemplate(source, eos_token="<|im_end|>")
        prompt = template.render([{"role": "user", "content": "Hi"}])

    `variants` are sources to use instead of `source` where a variable is given, by the names in VARIANTS. Raises
    ChatTemplateError if a source is not a valid jinja2 template, or too long.
    """

    def __init__(
        self, source: str, *, bos_token: str = "", eos_token: str = "", variants: Mapping[str, str] | None = None
    ) -> None:
        environment = TemplateSandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlocks]
        )
        environment.add_filter("tojson", _to_json)
        environment.add_filter("fromjson", _from_json)
        environment.add_filter("from_json", _from_json)
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        sources = {"": source, **({} if variants is None else variants)}
        num_chars = sum(map(len, sources.values()))
        if num_chars > MAX_SOURCE_CHARS:
            raise ChatTemplateError(f"the chat template has {num_chars} characters; the limit is {MAX_SOURCE_CHARS}")
        try:
            self._templates = {name: environment.from_string(text) for name, text in sources.items()}
        except TemplateSyntaxError as error:
            raise ChatTemplateError(f"the chat template is broken at line {error.lineno}: {error.message}") from error
        # What jinja2 itself accepts is compiled as Python, which has limits of its own: of depth, digits and blocks.
        except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
            raise ChatTemplateError(f"the chat template cannot be compiled: {error}") from error
        self._source = "\0".join(sources.values())
        self.takes_tools = _TOOLS.search(self._source) is not None  # otherwise it cannot tell the model of any
        self.takes_results = _RESULTS.search(self._source) is not None
        self.is_slow = False  # whether it once computed for longer than a thread could wait
        self._takes_parts = False  # whether it reads only contents that are lists of parts
        # Templates ask whether there are tools, and in some of them an undefined variable is not none.
        self._tokens: dict[str, object] = dict.fromkeys(VARIANTS) | {"bos_token": bos_token, "eos_token": eos_token}

    def detect_content_format(self) -> None:
        """Renders a message to find out whether the template leaves out contents that are no lists of parts.

        Those of some models that see pictures do.
        """

        def writes(content: object) -> bool:
            with suppress(ChatTemplateError, TemplateTimeout):
                return _PROBE in self._render(dict(self._tokens), [{"role": "user", "content": content}], True)
            return False

        self._takes_parts = not writes(_PROBE) and writes(_as_parts(_PROBE))

    def with_defaults(self, variables: Mapping[str, object]) -> ChatTemplate:
        """This template with further values of variables that a conversation does not give."""
        changed = copy(self)
        changed._tokens = {**self._tokens, **variables}
        return changed

    @property
    def source(self) -> str:
        """The source of the template and of its variants."""
        return self._source

    def render(
        self,
        messages: Sequence[Message],
        /,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: object,
    ) -> str:
        """The prompt for `messages`.

        Args:
            messages: the content of each is a string, or a list of text parts that are joined by newlines.
            add_generation_prompt: whether the prompt ends with the beginning of an assistant's turn.
            continue_final_message: whether the last message is left open, so that the model continues it.
            kwargs: further variables for the template, such as `tools`, `documents` or its own switches.

        Raises:
            ChatTemplateError: the messages or switches are wrong, or the template fails or exceeds its limits.
            TemplateTimeout: see `inline_template_limits`.
        """
        flat = _with_texts(messages)
        return self._render_messages(flat, kwargs, add_generation_prompt, continue_final_message)

    def render_shielded(
        self,
        messages: Sequence[Message],
        control: ControlTokens,
        /,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: object,
    ) -> ShieldedText:
        """`render`, with marks in the client's texts, so that none of them can become a control token.

        All texts of `messages` but the roles are marked, and those in `kwargs`. Raises ChatTemplateError also where the
        messages leave no character for the marks.
        """
        flat = _with_texts(messages)
        texts = [self._source, *control.ids]
        _add_texts(texts, [*flat, kwargs])
        mark = choose_mark(texts)
        if mark is None:
            raise ChatTemplateError(
                f"the messages have all of the noncharacters U+{ord(MARKS[0]):04X} to U+{ord(MARKS[-1]):04X}; "
                "the server needs one of them for itself"
            )

        def shield(text: str, is_key: bool) -> str:
            return control.shield(text, mark, self._source, is_key=is_key)

        for message in flat:
            for key, value in message.items():
                if isinstance(value, str):
                    message[key] = value if key == "role" else control.shield(value, mark, self._source)
                elif key == "content" and value is not None:
                    message[key] = [
                        {**part, "text": control.shield(part["text"], mark, self._source)} if "text" in part else part
                        for part in value
                    ]
                elif value is not None:
                    message[key] = _map_texts(value, shield)
        others = {}
        for key, value in kwargs.items():
            others[key] = _map_texts(value, shield)
        text = self._render_messages(flat, others, add_generation_prompt, continue_final_message)
        return ShieldedText(text, mark)

    def _render_messages(
        self,
        messages: list[dict[str, Any]],
        kwargs: Mapping[str, object],
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> str:
        if add_generation_prompt and continue_final_message:
            raise ChatTemplateError("add_generation_prompt and continue_final_message cannot both be true")
        if continue_final_message:
            if not isinstance(messages[-1]["content"], str):
                raise ChatTemplateError("continue_final_message needs a last message with text")
            messages[-1]["content"] += END_OF_CONTENT
        if "message.thinking" in self._source:
            refuses_both = "message.content and message.thinking" in self._source
            messages = [_with_thinking(message, refuses_both=refuses_both) for message in messages]
        if self._takes_parts:
            messages = [{**message, "content": _as_parts(message["content"])} for message in messages]
        variables = {**self._tokens, **self._old_variables(kwargs.get("tools")), **kwargs}
        text = self._render(variables, messages, add_generation_prompt)
        if not continue_final_message:
            return text
        text, end, _ = text.rpartition(END_OF_CONTENT)
        if not end:
            raise ChatTemplateError("continue_final_message: the chat template leaves out the last message")
        return text

    def _old_variables(self, tools: object) -> dict[str, object]:
        """Variables by which some templates know the tools and the time."""
        known: dict[str, object] = {}
        if "functions" in self._source:
            functions = [tool["function"] for tool in tools if "function" in tool] if isinstance(tools, list) else []
            known["functions"] = json.dumps(functions, indent=4, ensure_ascii=False) if functions else ""
        if "xml_tools" in self._source and tools:
            known["xml_tools"] = tools
        if "datetime" in self._source:
            known["datetime"] = _strftime_now("%b %d %Y, %H:%M GMT%z")
        if "date_string" in self._source:
            known["date_string"] = _strftime_now("%d %b %Y")
        return known

    def _template_for(self, variables: Mapping[str, object]) -> Template:
        for variable, name in VARIANTS.items():
            if variables.get(variable) is not None and name in self._templates:
                return self._templates[name]
        return self._templates[""]

    def _render(self, variables: dict[str, object], messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        template = self._template_for(variables)
        began = time.thread_time()
        try:
            with running_template([messages, variables]):
                given = _Messages(messages)
                return template.render(variables, messages=given, add_generation_prompt=add_generation_prompt)
        except TemplateTimeout as error:
            # A thread that has only waited, for a core or for the interpreter lock, says nothing about the template.
            if time.thread_time() - began > error.seconds / 4:
                self.is_slow = True
            raise
        except TemplateError as error:
            reason = (error.message or "")[:MAX_REASON_CHARS]
            raise ChatTemplateError(f"the chat template says: {reason}") from error
        # A template may fail on the values of a client in many ways: wrong types, missing keys, too long a range.
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError) as e:
            reason = str(e)[:MAX_REASON_CHARS]
            raise ChatTemplateError(f"the chat template fails on these messages: {reason}") from e


class _Messages(list[dict[str, Any]]):
    """The messages, to which a template may append nothing."""


class _GenerationBlocks(Extension):
    """The `generation` tag, by which training code finds the assistant's tokens; its content is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _with_texts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if not messages:
        raise ChatTemplateError("messages is empty; at least one message is needed")
    flat = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list) and any(is_picture(part) for part in content):
            flat.append({**message, "content": [_without_bytes(part) for part in content]})
        else:
            flat.append({**message, "content": content if isinstance(content, str) else _text_of(content)})
    return flat


def _as_parts(content: Any) -> Any:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _without_bytes(part: Any) -> dict[str, str]:
    """A part of a content with pictures, as templates know it."""
    if is_picture(part):
        return {"type": "video" if isinstance(part["image"], Video) else "image"}
    return {"type": "text", "text": _text_of_part(part)}


def _with_thinking(message: dict[str, Any], *, refuses_both: bool) -> dict[str, Any]:
    """The message with its reasoning under the name that some templates read.

    `refuses_both` says that calls may not have a text beside their reasoning, which is then the end of it, as in the
    template of gpt-oss.
    """
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if not isinstance(reasoning, str) or "thinking" in message:
        return message
    content = message["content"]
    if refuses_both and message.get("tool_calls") and isinstance(content, str) and content:
        return {**message, "thinking": f"{reasoning}\n{content}", "content": ""}
    return {**message, "thinking": reasoning}


def _text_of(content: object) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise ChatTemplateError(f"a message's content is {type(content).__name__}; it must be a string or a list")
    return "\n".join(map(_text_of_part, content))


def _text_of_part(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    raise ChatTemplateError(f"a content part of type {kind!r} is not supported; only text parts are")


def _add_texts(texts: list[str], parts: Iterable[object]) -> None:
    """Adds all texts in the values `parts`, keys of mappings included, to `texts`."""
    for part in parts:
        match part:
            case str():
                texts.append(part)
            case Mapping():
                _add_texts(texts, chain.from_iterable(part.items()))
            case list() | tuple():
                _add_texts(texts, part)


def _map_texts(value: object, change: Callable[[str, bool], str]) -> object:
    """`value` with each text in it changed, keys of mappings too, which the second argument of `change` tells apart."""
    match value:
        case str():
            return change(value, False)
        case Mapping():
            return {
                change(key, True) if isinstance(key, str) else key: _map_texts(part, change)
                for key, part in value.items()
            }
        case list() | tuple():
            return [_map_texts(part, change) for part in value]
    return value


def _as_list(value: object) -> list[Any]:
    """What filters such as `map` give, as JSON."""
    if not isinstance(value, Iterator):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return list(value)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` filter without the HTML escapes of jinja2's own, which must not get into a prompt."""
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_as_list
    )
    if indent is None and separators is None:
        return encoder.encode(value)
    # The indentation may be far longer than the values.
    budget, pieces, num_chars = current_budget(), [], 0
    for piece in encoder.iterencode(value):
        budget.tick()
        num_chars += len(piece)
        budget.check_size(num_chars)
        pieces.append(piece)
    return "".join(pieces)


def _from_json(text: str) -> Any:
    """The filters `fromjson` and `from_json`, by which some templates read the arguments of calls."""
    return json.loads(text)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    if len(pattern) > MAX_REASON_CHARS:
        raise TemplateError(f"strftime_now is given more than {MAX_REASON_CHARS} characters")
    return datetime.now(tz=UTC).astimezone().strftime(pattern)
