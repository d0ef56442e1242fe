"""Compaction: a conversation becomes its last user messages and a summary, which the model writes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from server.api.openai.call import to_request
from server.api.responses.input_items import sealed
from server.api.responses.item_conversion import to_messages
from server.api.responses.items import Item, text_of
from server.api.responses.response_call import ResponseCall
from server.api.responses.response_object import usage_object
from server.api.responses.truncation import TruncatedConversation
from server.generation.answers import Usage
from server.generation.generation_request import GenerationRequest
from server.generation.prompt_sources import Conversation

MAX_SUMMARY_TOKENS = 1024  # where the request does not say
MAX_KEPT_CHARS = 16_000  # of the user's own messages, the newest first
PROMPT = (
    "Write a summary of this conversation for someone who goes on with it and has not seen it. State what the user "
    "wants, what was done and decided, which files, commands, names and values matter, what failed, and what is left "
    "to do. Write only the summary."
)


def compaction_request(turn: ResponseCall) -> GenerationRequest:
    """The request for the summary. The oldest turns are left out where the conversation is too long."""
    body = turn.body
    items = [*turn.before, *turn.given]
    messages = to_messages(items, body.instructions, num_before=len(turn.before))
    conversation = Conversation(
        [*messages, {"role": "user", "content": PROMPT}], variables=body.template_variables, switches=body.switches
    )
    most = body.max_output_tokens
    prompt = TruncatedConversation(conversation, most)
    make = partial(to_request, body, [prompt], prompt_parameter="input", default_max_tokens=MAX_SUMMARY_TOKENS)
    return make(max_tokens=most, max_tokens_parameter="max_output_tokens")


def compaction_object(turn: ResponseCall, summary: str, usage: Usage, num_reasoning_tokens: int) -> dict[str, Any]:
    """The object of the compacted conversation; its output is the input of the next request."""
    kept = _last_messages([*turn.before, *turn.given])
    compacted = {
        "id": turn.output_id("compaction", 0),
        "type": "compaction",
        "encrypted_content": sealed(summary),
        "created_by": "eagre",
    }
    return {
        "id": turn.id,
        "object": "response.compaction",
        "created_at": turn.created_at,
        "output": [*kept, compacted],
        "usage": usage_object(usage, num_reasoning_tokens),
    }


def _last_messages(items: Sequence[Item]) -> list[Item]:
    """The newest messages of the user, as many as may be kept, in their order."""
    kept: list[Item] = []
    num_chars = 0
    for item in reversed(items):
        if item["type"] == "message" and item["role"] == "user":
            num_chars += len(text_of(item))
            if num_chars > MAX_KEPT_CHARS:
                break
            kept.append(item)
    return kept[::-1]
