"""Pictures in the messages of a conversation, before they are decoded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from server.protocol.errors import ApiError

NOTE = "[An image was left out here, because this model cannot see images.]"
MAX_PICTURES = 64  # of one request

# The content of a message: a text, or a list of parts as chat templates know them: `{"type": "text", "text": …}` and
# `{"type": "image", "image": Picture}`. A list has at least one picture.
Content: TypeAlias = str | list[dict[str, Any]]
Message: TypeAlias = Mapping[str, Any]

_INDEX = re.compile(r"\[\d+\]")


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as a client has sent it."""

    path: str  # of its part in the body, such as messages[0].content[1]
    kind: str  # the type of that part
    url: str  # a data URL, or an address of http, https or file
    detail: str = "auto"
    switches: str = ""  # the `mm_processor_kwargs` of its request, as JSON; empty: there are none

    @property
    def name(self) -> str:
        """The part without its indices, as ignored parameters are reported."""
        path = _INDEX.sub("[]", self.path)
        return f"{path.removesuffix('[]')}.{self.kind}"

    @property
    def noun(self) -> str:
        """What messages call it."""
        return "picture"

    def within(self, path: str) -> Picture:
        """The same picture, in a part of the body with this path."""
        return replace(self, path=f"{path}.{self.path}")


def is_picture(part: Any) -> bool:
    """Whether a part of a content is a picture."""
    return isinstance(part, Mapping) and isinstance(part.get("image"), Picture)


def text_part(text: str) -> dict[str, Any]:
    """A part of a content that is text."""
    return {"type": "text", "text": text}


def picture_part(picture: Picture) -> dict[str, Any]:
    """A part of a content that is a picture."""
    return {"type": "image", "image": picture}


def as_content(parts: Sequence[str | Picture]) -> Content:
    """The content of texts and pictures; texts alone are joined by line ends."""
    if not any(isinstance(part, Picture) for part in parts):
        return "\n".join(part for part in parts if isinstance(part, str))
    return [text_part(part) if isinstance(part, str) else picture_part(part) for part in parts]


def join_contents(contents: Iterable[Content], separator: str = "\n") -> Content:
    """One content of several; their texts are joined by a separator."""
    contents = list(contents)
    if all(isinstance(content, str) for content in contents):
        return separator.join(content for content in contents if isinstance(content, str))
    joined: list[dict[str, Any]] = []
    for content in contents:
        for part in [text_part(content)] if isinstance(content, str) else content:
            if part["type"] == "text" and joined and joined[-1]["type"] == "text":
                joined[-1] = text_part(joined[-1]["text"] + separator + part["text"])
            else:
                joined.append(part)
    return joined


def text_of(content: Content) -> str:
    """The texts of a content, joined by line ends, without its pictures."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def within(content: Content, path: str) -> Content:
    """A content whose pictures are in a part of the body with this path."""
    return with_paths(content, lambda place: f"{path}.{place}")


def with_paths(content: Content, rename: Callable[[str], str]) -> Content:
    """A content with other paths of its pictures."""
    if isinstance(content, str):
        return content
    return [
        picture_part(replace(part["image"], path=rename(part["image"].path))) if part["type"] == "image" else part
        for part in content
    ]


def pictures_of(messages: Iterable[Message]) -> Iterator[Picture]:
    """The pictures of a conversation, in their order."""
    for message in messages:
        if not isinstance(message["content"], str):
            yield from _pictures(message["content"])


def without_pictures(messages: Sequence[Message], *, ignores: bool) -> Sequence[Message]:
    """The conversation for a model that reads text alone, with notes in the places of pictures.

    Args:
        ignores: whether that holds for pictures of users, and not only for those in results of tools.

    Raises:
        ApiError: names the first picture that may not be left out.
    """
    if all(isinstance(message["content"], str) for message in messages):
        return messages
    return [
        message
        if isinstance(message["content"], str)
        else {**message, "content": _noted(message["content"], ignores=ignores or message["role"] == "tool")}
        for message in messages
    ]


def refuse_too_many(pictures: Sequence[Picture]) -> None:
    """Raises ApiError for more than MAX_PICTURES, videos included."""
    if len(pictures) > MAX_PICTURES:
        raise ApiError(
            f"the request has {len(pictures)} pictures; at most {MAX_PICTURES} are allowed",
            param=pictures[MAX_PICTURES].path,
            code="too_many_images",
        )


def image_not_supported(picture: Picture) -> ApiError:
    """The error for a picture where the model reads text alone."""
    return ApiError(
        f"{picture.path} is a {picture.noun}, and this model reads text alone; --ignore-media of the server leaves "
        f"{picture.noun}s out",
        param=picture.path,
        code="image_not_supported",
    )


def _pictures(content: Sequence[Mapping[str, Any]]) -> Iterator[Picture]:
    for part in content:
        if part["type"] == "image":
            yield part["image"]


def _noted(content: list[dict[str, Any]], *, ignores: bool) -> str:
    for picture in _pictures(content):
        if not ignores:
            raise image_not_supported(picture)
    return "\n".join(part["text"] if part["type"] == "text" else NOTE for part in content)
