"""What the input of a response may be, and how what it may not be is named."""

from __future__ import annotations

from typing import Any

import pytest

from server.api.responses.input_items import MAX_ITEMS
from server.api.responses.responses_request import ResponsesRequest
from server.protocol.errors import to_api_error

TEXT = {"type": "input_text", "text": "a"}
USER = {"role": "user", "content": "a"}


def test_a_text_is_a_message_and_parts_are_joined() -> None:
    assert ResponsesRequest.parse({"input": "a"}).input == ResponsesRequest.parse({"input": [USER]}).input
    (joined,) = ResponsesRequest.parse({"input": [{"role": "user", "content": [TEXT, TEXT]}]}).input
    assert joined.content == "a\na"  # type: ignore[union-attr]


def test_items_come_back_as_libraries_keep_them() -> None:
    answer = {
        "id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "phase": None, "parsed": 1,
        "content": [{"type": "output_text", "text": "b", "annotations": [], "logprobs": None}],
    }  # fmt: skip
    request = ResponsesRequest.parse({"input": [USER, answer, {"id": "msg_2"}]})
    assert [item.type for item in request.input] == ["message", "message", "item_reference"]
    assert request.ignored == ("input[].parsed",)


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([], "input"),
        ([5], "input[0]"),
        ([USER, {"type": ["computer_call"]}], "input[1].type"),
        ([{"role": "user", "content": [{"type": "picture", "image_url": "x"}]}], "input[0].content"),
        ([{"role": "no body", "content": "a"}], "input[0].role"),
        ([{"type": "function_call", "call_id": "", "name": "f", "arguments": "{}"}], "input[0].call_id"),
        ([USER] * (MAX_ITEMS + 1), "input"),
    ],
)
def test_what_it_may_not_be_is_named(items: Any, param: str) -> None:
    with pytest.raises(Exception) as refusal:  # noqa: PT011 - of several kinds
        ResponsesRequest.parse({"input": items})
    assert to_api_error(refusal.value).param == param
