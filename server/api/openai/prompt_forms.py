"""The forms of llama.cpp's `prompt`: texts, token ids, both in one list, texts with pictures, and lists of all."""

from typing import Any, TypeAlias

from server.api.openai.completion_request import MAX_PROMPT_TOKENS, MAX_PROMPTS
from server.api.openai.media_parts import reader_of
from server.generation.picture_prompt import PicturePrompt
from server.generation.prompt_sources import MixedPrompt, PromptSource, TextPrompt, TokenPrompt
from server.media.picture import MAX_PICTURES, Picture
from server.protocol.errors import shorten

MAX_TEXTS = 1024  # in one prompt of texts and token ids
MEDIA_MARKER = "<__media__>"  # stands in a text for each of its pictures
_SHAPES = "it must be a string, a list of token ids and strings, or a list of such prompts"
_DATA = "multimodal_data"
_DATA_URL = "data:image/png;base64,"  # whatever the kind, which the picture itself tells

AnyLlamaPrompts: TypeAlias = (
    str | dict[str, Any] | list[str] | list[int] | list[int | str] | list[list[int | str]] | list[dict[str, Any]]
)


def as_sources(
    value: Any, name: str = "prompt", *, most: int = MAX_PROMPTS, takes_pictures: bool = False
) -> list[PromptSource]:
    """One prompt or several; raises ValueError, also beyond `most`."""
    is_list = isinstance(value, list) and not any(type(part) is int for part in value)
    prompts: list[Any] = value if is_list else [value]
    if not prompts:
        raise ValueError(f"{name} is empty; it must have at least one token")
    if len(prompts) > most:
        raise ValueError(f"{name} has {len(prompts)} prompts; at most {most} are allowed")
    paths = [f"{name}[{index}]" for index in range(len(prompts))] if is_list else [name]
    return [
        _as_source(prompt, name, path, takes_pictures=takes_pictures)
        for prompt, path in zip(prompts, paths, strict=True)
    ]


def _as_source(prompt: Any, name: str, path: str, *, takes_pictures: bool) -> PromptSource:
    """A prompt, of which errors name the parameter `name`, and pictures the path in the body."""
    if isinstance(prompt, dict):
        if takes_pictures:
            parts = _parts_of(prompt, name, path)
            if any(isinstance(part, Picture) for part in parts):
                return PicturePrompt(parts)
        prompt = _text_of(prompt, name)
    if not isinstance(prompt, str | list):
        raise ValueError(f"{name} is {shorten(prompt)}; {_SHAPES}")
    if not prompt:
        raise ValueError(f"{name} is empty; it must have at least one token")
    if isinstance(prompt, str):
        return TextPrompt(prompt)
    if len(prompt) > MAX_PROMPT_TOKENS:
        raise ValueError(f"{name} has {len(prompt)} token ids; at most {MAX_PROMPT_TOKENS} are allowed")
    mixed: list[Any] = [_text_of(part, name) if isinstance(part, dict) else part for part in prompt]
    num_texts = 0
    for part in mixed:
        num_texts += isinstance(part, str)
        if type(part) not in (int, str):
            raise ValueError(f"{name} has the entry {shorten(part)}; {_SHAPES}")
    if num_texts > MAX_TEXTS:
        raise ValueError(f"{name} has {num_texts} texts among its token ids; at most {MAX_TEXTS} are allowed")
    return MixedPrompt(mixed) if num_texts else TokenPrompt(mixed)


def _text_of(prompt: dict[str, Any], name: str) -> str:
    """The text of an object: its `prompt_string`, or the parts of its `content` one after the other."""
    if prompt.get(_DATA):
        raise ValueError(f"{name} has {_DATA}; there is no place for a picture here")
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


def _parts_of(prompt: dict[str, Any], name: str, path: str) -> list[str | Picture]:
    """The texts and pictures of an object; none where it has none, or is not of such a form."""
    text, content, given = prompt.get("prompt_string"), prompt.get("content"), prompt.get(_DATA)
    if isinstance(content, list) and text is None and not given:
        if len(content) > MAX_TEXTS:
            return []
        read = [(part, reader_of(part), f"{path}.content[{at}]") for at, part in enumerate(content)]
        return [_text_of_part(part, name) if reader is None else reader(part, own) for part, reader, own in read]
    if given is None or not isinstance(text, str):
        return []
    if not isinstance(given, list) or not all(isinstance(data, str) for data in given[:MAX_PICTURES]):
        raise ValueError(f"{path}.{_DATA} is {shorten(given)}; it must be a list of pictures in base64")
    if len(given) > MAX_PICTURES:
        raise ValueError(f"{path}.{_DATA} has {len(given)} pictures; at most {MAX_PICTURES} are allowed")
    texts = text.split(MEDIA_MARKER, MAX_PICTURES + 1)
    if len(texts) != len(given) + 1:
        raise ValueError(
            f"{path} has {len(given)} pictures and {text.count(MEDIA_MARKER)} times {MEDIA_MARKER} in its text; each "
            "picture has one place"
        )
    pictures = [Picture(f"{path}.{_DATA}[{at}]", "image", _DATA_URL + data) for at, data in enumerate(given)]
    parts: list[str | Picture] = [texts[0]]
    for picture, behind in zip(pictures, texts[1:], strict=True):
        parts += [picture, behind]
    return parts
