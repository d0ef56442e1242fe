"""From Anthropic's turns to the messages of chat templates, with roles of their own and in plain turns."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from server.api.anthropic.message_conversion import (
    InputMessage,
    to_messages,
    to_plain_messages,
    without_changing_blocks,
)

CALL = {"type": "tool_use", "id": "t", "name": "tide", "input": {"at": "Brest"}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "nine"}


def turns(*told: tuple[str, Any]) -> list[InputMessage]:
    return [InputMessage.model_validate({"role": role, "content": content}) for role, content in told]


def test_a_billing_header_is_left_out_and_the_text_behind_it_stays() -> None:
    header = "x-anthropic-billing-header: cc_version=1"
    assert without_changing_blocks([header, f"{header}\n\nBe kind.", "Be brief."]) == ["Be kind.", "Be brief."]


def test_a_system_stays_where_it_stands_and_turns_of_one_role_are_one() -> None:
    told = turns(("user", "a"), ("user", "b"), ("system", "c"), ("assistant", "d"))
    assert to_messages(["s", "t"], told) == [
        {"role": "system", "content": "s\nt"},
        {"role": "user", "content": "a\nb"},
        {"role": "system", "content": "c"},
        {"role": "assistant", "content": "d"},
    ]


@pytest.mark.parametrize("to_any", [to_messages, to_plain_messages])
def test_the_texts_of_a_row_are_copied_once(
    to_any: Callable[[list[str], list[InputMessage]], list[dict[str, Any]]],
) -> None:
    """Where each text was put behind all those before it, two copies of these would exist at the end."""
    told = turns(*[("user", "x" * 10_000)] * 200)
    tracemalloc.start()
    try:
        messages = to_any([], told)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (message,) = messages
    assert len(message["content"]) == 200 * 10_001 - 1
    assert peak < 1.5 * len(message["content"])


def test_calls_and_results_have_roles_of_their_own() -> None:
    thought = {"type": "thinking", "thinking": "hm"}
    told = turns(
        ("user", "when?"),
        ("assistant", [thought, {"type": "text", "text": "I look."}, CALL]),
        ("user", [{"type": "text", "text": "here:"}, RESULT, {**RESULT, "is_error": True}]),
    )
    called = {"id": "t", "type": "function", "function": {"name": "tide", "arguments": {"at": "Brest"}}}
    assert to_messages([], told)[1:] == [
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": [called]},
        {"role": "user", "content": "here:"},
        {"role": "tool", "tool_call_id": "t", "content": "nine", "name": "tide"},
        {"role": "tool", "tool_call_id": "t", "content": "Error: nine", "name": "tide"},
    ]


def test_plain_turns_are_by_turns_and_the_user_is_the_first() -> None:
    told = turns(("assistant", [CALL]), ("system", "c"), ("user", [RESULT]))
    assert to_plain_messages([], told) == [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": '<tool_call>\n{"name":"tide","arguments":{"at":"Brest"}}\n</tool_call>'},
        {"role": "user", "content": "c\n<tool_response>\nnine\n</tool_response>"},
    ]
    assert to_plain_messages(["s"], turns(("user", "a"))) == [{"role": "user", "content": "s\n\na"}]
