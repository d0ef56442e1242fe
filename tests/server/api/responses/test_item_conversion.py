"""From the items of a response to the messages of chat templates."""

from __future__ import annotations

import tracemalloc
from typing import Any

from server.api.responses.item_conversion import to_messages
from server.api.responses.items import shape_items
from server.api.responses.responses_request import ResponsesRequest

CALL = {"type": "function_call", "call_id": "c", "name": "tide", "arguments": '{"at": "Brest"}'}
RESULT = {"type": "function_call_output", "call_id": "c", "output": "nine"}


def messages_of(*items: dict[str, Any], instructions: str | None = None) -> list[dict[str, Any]]:
    request = ResponsesRequest.parse({"input": list(items)})
    return to_messages(shape_items(request.input, lambda kind, at: f"{kind}{at}"), instructions)


def test_instructions_and_the_first_system_messages_are_one() -> None:
    first, second = {"role": "developer", "content": "b"}, {"role": "system", "content": "d"}
    told = messages_of(first, {"role": "user", "content": "c"}, second, instructions="a")
    assert [(message["role"], message["content"]) for message in told] == [
        ("system", "a\n\nb"), ("user", "c"), ("system", "d"),
    ]  # fmt: skip


def test_the_first_system_messages_are_copied_once() -> None:
    """Where each was put behind all those before it, two copies of them would exist at the end."""
    request = ResponsesRequest.parse({"input": [{"role": "system", "content": "x" * 10_000}] * 200})
    items = shape_items(request.input, lambda kind, at: f"{kind}{at}")
    tracemalloc.start()
    try:
        messages = to_messages(items, "be brief")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    (message,) = messages
    assert len(message["content"]) == len("be brief") + 200 * 10_002
    assert peak < 1.5 * len(message["content"])


def test_reasoning_and_calls_belong_to_one_answer() -> None:
    reasoning = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    answer = {"role": "assistant", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]}
    told = messages_of({"role": "user", "content": "when?"}, reasoning, answer, CALL, RESULT)
    assert [message["role"] for message in told] == ["user", "assistant", "tool"]
    assert (told[1]["content"], told[1]["reasoning_content"]) == ("I look.", "hm")
    assert told[1]["tool_calls"][0]["function"] == {"name": "tide", "arguments": {"at": "Brest"}}
    assert told[2] == {"role": "tool", "content": "nine", "tool_call_id": "c", "name": "tide"}


def test_a_call_without_a_text_is_an_answer_of_its_own() -> None:
    told = messages_of({"role": "user", "content": "when?"}, CALL)
    assert (told[1]["role"], told[1]["content"], len(told[1]["tool_calls"])) == ("assistant", "", 1)
