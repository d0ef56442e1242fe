"""The roles of messages: those that every template knows, other names of them, and those of single templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from server.media.picture import text_of

KNOWN_ROLES = frozenset({"system", "user", "assistant", "tool"})  # to every template that chats
RESULTS = ("tool", "function", "ipython")  # whose messages are results of calls
_OTHER_NAMES = {"developer": "system", "function": "tool", "ipython": "tool"}

# One that is not known stands in the prompt as the template writes it. It has no brackets, so it becomes part of a
# control token only where the template itself puts brackets around roles, as with `<|user|>`.
Role = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")]


def template_role(role: str) -> str:
    """The role by the name that templates know."""
    return _OTHER_NAMES.get(role, role)


def other_role(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The first role that only some templates know; None where there is none."""
    return next((str(message["role"]) for message in messages if message["role"] not in KNOWN_ROLES), None)


def left_out_role(text: str, messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The first role that only some templates know, and whose message is not in a rendered text."""
    for message in messages:
        if message["role"] not in KNOWN_ROLES and text_of(message["content"]).strip() not in text:
            return str(message["role"])
    return None
