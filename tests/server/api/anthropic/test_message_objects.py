"""What Anthropic's clients expect of answers and errors, in its parts."""

from __future__ import annotations

import pytest

from engine.interface.types import FinishReason
from server.api.anthropic.message_objects import encode_error, error_object, stop_reason, usage_object
from server.generation.answers import Usage
from server.protocol.errors import ApiError


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (404, "not_found_error"), (413, "request_too_large"), (429, "rate_limit_error"),
     (503, "overloaded_error"), (418, "invalid_request_error")],
)  # fmt: skip
def test_an_error_has_a_type_by_its_status_and_the_requests_id(status: int, kind: str) -> None:
    error = ApiError("no", status=status)
    assert error_object(error, "r1") == {
        "type": "error",
        "error": {"type": kind, "message": "no"},
        "request_id": "r1",
    }
    assert encode_error(error, "r1").startswith(b"event: error\ndata: {")


def test_no_token_of_a_prompt_counts_twice() -> None:
    told = usage_object(Usage(num_prompt_tokens=10, num_completion_tokens=5, num_cached_tokens=4), 2)
    assert (told["input_tokens"], told["cache_read_input_tokens"], told["output_tokens"]) == (6, 4, 5)
    assert told["output_tokens_details"] == {"thinking_tokens": 2}
    assert "output_tokens_details" not in usage_object(Usage(1, 1, 0), None)


@pytest.mark.parametrize(
    ("reason", "is_stop_string", "has_calls", "is_context_full", "told"),
    [
        (FinishReason.STOP, False, False, False, "end_turn"),
        (FinishReason.STOP, True, True, False, "stop_sequence"),
        (FinishReason.STOP, False, True, False, "tool_use"),
        (FinishReason.LENGTH, False, True, False, "max_tokens"),
        (FinishReason.LENGTH, False, False, True, "model_context_window_exceeded"),
    ],
)
def test_why_an_answer_has_ended(
    reason: FinishReason, is_stop_string: bool, has_calls: bool, is_context_full: bool, told: str
) -> None:
    found = stop_reason(reason, is_stop_string=is_stop_string, has_calls=has_calls, is_context_full=is_context_full)
    assert found == told


@pytest.mark.parametrize(("reason", "status"), [(FinishReason.TIMEOUT, 504), (FinishReason.ABORT, 503)])
def test_an_answer_that_was_cut_off_has_no_reason(reason: FinishReason, status: int) -> None:
    with pytest.raises(ApiError) as cut:
        stop_reason(reason, is_stop_string=False, has_calls=False, is_context_full=False)
    assert cut.value.status == status
