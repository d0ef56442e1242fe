"""Ids of responses, their items, and conversations.

The id of an item contains that of its response, so that an item which a client names alone can be found.
"""

from __future__ import annotations

import secrets

_TOKEN_BYTES = 16
_TOKEN_LENGTH = 2 * _TOKEN_BYTES  # characters

RESPONSE_PREFIX = "resp_"
CONVERSATION_PREFIX = "conv_"

_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def new_response_id() -> str:
    return f"{RESPONSE_PREFIX}{secrets.token_hex(_TOKEN_BYTES)}"


def new_conversation_id() -> str:
    return f"{CONVERSATION_PREFIX}{secrets.token_hex(_TOKEN_BYTES)}"


def item_id(kind: str, response_id: str, index: int) -> str:
    """The id of an item of a response.

    Args:
        index: of all items of the response, those of its input first.
    """
    return f"{_PREFIXES[kind]}_{response_id.removeprefix(RESPONSE_PREFIX)}{index:04x}"


def new_item_id(kind: str) -> str:
    """The id of an item of no response."""
    return f"{_PREFIXES[kind]}_{secrets.token_hex(_TOKEN_BYTES)}"


def response_of_item(known_id: str) -> str:
    """The id of the response that an item belongs to, if there is such a response at all."""
    return RESPONSE_PREFIX + known_id.partition("_")[2][:_TOKEN_LENGTH]
