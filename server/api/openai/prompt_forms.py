"""The forms of llama.cpp's `prompt`: texts, token ids, both in one list, and lists of all of these."""

from typing import Any, TypeAlias

from server.api.openai.completion_request import MAX_PROMPT_TOKENS, MAX_PROMPTS
from server.generation.prompt_sources import MixedPrompt, PromptSource, TextPrompt, TokenPrompt
from server.protocol.errors import shorten

MAX_TEXTS = 1024  # in one prompt of texts and token ids
_SHAPES = "it must be a string, a list of token ids and strings, or a list of such prompts"

AnyLlamaPrompts: TypeAlias = (
    str | dict[str, Any] | list[str] | list[int] | list[int | str] | list[list[int | str]] | list[dict[str, Any]]
)


def as_sources(value: Any, name: str = "prompt", *, most: int = MAX_PROMPTS) -> list[PromptSource]:
    """One prompt or several; raises ValueError, also beyond `most`."""
    is_list = isinstance(value, list) and not any(type(part) is int for part in value)
    prompts: list[Any] = value if is_list else [value]
    if not prompts:
        raise ValueError(f"{name} is empty; it must have at least one token")
    if len(prompts) > most:
        raise ValueError(f"{name} has {len(prompts)} prompts; at most {most} are allowed")
    return [_as_source(prompt, name) for prompt in prompts]


def _as_source(prompt: Any, name: str) -> PromptSource:
    if isinstance(prompt, dict):
        prompt = _text_of(prompt, name)
    if not isinstance(prompt, str | list):
        raise ValueError(f"{name} is {shorten(prompt)}; {_SHAPES}")
    if not prompt:
        raise ValueError(f"{name} is empty; it must have at least one token")
    if isinstance(prompt, str):
        return TextPrompt(prompt)
    if len(prompt) > MAX_PROMPT_TOKENS:
        raise ValueError(f"{name} has {len(prompt)} token ids; at most {MAX_PROMPT_TOKENS} are allowed")
    parts: list[Any] = [_text_of(part, name) if isinstance(part, dict) else part for part in prompt]
    num_texts = 0
    for part in parts:
        num_texts += isinstance(part, str)
        if type(part) not in (int, str):
            raise ValueError(f"{name} has the entry {shorten(part)}; {_SHAPES}")
    if num_texts > MAX_TEXTS:
        raise ValueError(f"{name} has {num_texts} texts among its token ids; at most {MAX_TEXTS} are allowed")
    return MixedPrompt(parts) if num_texts else TokenPrompt(parts)


def _text_of(prompt: dict[str, Any], name: str) -> str:
    """The text of an object: its `prompt_string`, or the parts of its `content` one after the other."""
    if prompt.get("multimodal_data"):
        raise ValueError(f"{name} has multimodal_data; this route takes text alone")
    text, content = prompt.get("prompt_string"), prompt.get("content")
    if isinstance(content, list) and text is None:
        if len(content) > MAX_TEXTS:
            raise ValueError(f"{name} has a content of {len(content)} parts; at most {MAX_TEXTS} are allowed")
        return "".join([_text_of_part(part, name) for part in content])
    if not isinstance(text, str):
        raise ValueError(f"{name} is {shorten(prompt)}; an object must have the string prompt_string or a list content")
    return text


def _text_of_part(part: Any, name: str) -> str:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise ValueError(f"{name} has the part {shorten(part)}; this route takes parts of the type text alone")
    return text
