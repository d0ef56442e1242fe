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


def as_sources(value: Any) -> list[PromptSource]:
    """One prompt or several; raises ValueError."""
    is_list = isinstance(value, list) and not any(type(part) is int for part in value)
    prompts: list[Any] = value if is_list else [value]
    if not prompts:
        raise ValueError("prompt is empty; it must have at least one token")
    if len(prompts) > MAX_PROMPTS:
        raise ValueError(f"prompt has {len(prompts)} prompts; at most {MAX_PROMPTS} are allowed")
    return [_as_source(prompt) for prompt in prompts]


def _as_source(prompt: Any) -> PromptSource:
    if isinstance(prompt, dict):
        prompt = _text_of(prompt)
    if not isinstance(prompt, str | list):
        raise ValueError(f"prompt is {shorten(prompt)}; {_SHAPES}")
    if not prompt:
        raise ValueError("prompt is empty; it must have at least one token")
    if isinstance(prompt, str):
        return TextPrompt(prompt)
    if len(prompt) > MAX_PROMPT_TOKENS:
        raise ValueError(f"prompt has {len(prompt)} token ids; at most {MAX_PROMPT_TOKENS} are allowed")
    parts: list[Any] = [_text_of(part) if isinstance(part, dict) else part for part in prompt]
    num_texts = 0
    for part in parts:
        num_texts += isinstance(part, str)
        if type(part) not in (int, str):
            raise ValueError(f"prompt has the entry {shorten(part)}; {_SHAPES}")
    if num_texts > MAX_TEXTS:
        raise ValueError(f"prompt has {num_texts} texts among its token ids; at most {MAX_TEXTS} are allowed")
    return MixedPrompt(parts) if num_texts else TokenPrompt(parts)


def _text_of(prompt: dict[str, Any]) -> str:
    text = prompt.get("prompt_string")
    if not isinstance(text, str):
        raise ValueError(f"prompt is {shorten(prompt)}; an object must have the string prompt_string")
    if prompt.get("multimodal_data"):
        raise ValueError("prompt has multimodal_data; this route takes text alone")
    return text
