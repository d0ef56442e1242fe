"""Parameters that clients send and that this server does not have yet.

Each is accepted at the value that asks for nothing, and refused by name at any other: a
parameter that is quietly ignored gives answers that look right and are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.wire.errors import UnsupportedField

# Wire name: the values that ask for nothing. null is neutral everywhere.
_SHARED: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "metadata": ({},),
    "return_progress": (False,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "stream_interval": (1,),
    "truncate_prompt_tokens": (),
}

COMPLETIONS: Mapping[str, tuple[Any, ...]] = {
    **_SHARED,
    "echo": (False,),
    "suffix": ("",),
}

CHAT: Mapping[str, tuple[Any, ...]] = {
    **_SHARED,
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),  # says nothing where there are no tools
    "prediction": (),
    "reasoning_effort": ("none",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}

# Of one message. Answers of this and of other servers have them, and clients send answers back as they came.
MESSAGE: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": (),
    "refusal": ("",),
    "tool_calls": ([],),
}


def strip_neutral(body: Any, neutral: Mapping[str, tuple[Any, ...]]) -> Any:
    """`body` without the parameters of `neutral`; what is no JSON object comes back as it is.

    Raises:
        UnsupportedField: one of them asks for something.
    """
    if not isinstance(body, dict):
        return body
    kept = {}
    for name, value in body.items():
        if name not in neutral:
            kept[name] = value
        elif value is not None and not any(_is_same(value, allowed) for allowed in neutral[name]):
            raise UnsupportedField(name, value)
    return kept


def _is_same(value: Any, allowed: Any) -> bool:
    """Whether both are equal, where true is not 1, as in JSON."""
    return isinstance(value, bool) == isinstance(allowed, bool) and bool(value == allowed)
