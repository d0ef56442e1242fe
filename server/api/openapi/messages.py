"""Models of the responses of Anthropic's routes, for the OpenAPI document."""

from typing import Any, Literal

from server.api.openapi.answers import Answer


class OutputTokensDetails(Answer):
    thinking_tokens: int


class MessageUsage(Answer):
    """Token counts; no token of the prompt counts twice."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails | None = None


class ContentBlock(Answer):
    """Text, reasoning or the call of a tool."""

    type: Literal["text", "thinking", "tool_use"]
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None


class AnthropicMessage(Answer):
    """The response of /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"] | None
    stop_sequence: str | None
    usage: MessageUsage


class AnthropicErrorDetails(Answer):
    type: str
    message: str


class AnthropicError(Answer):
    """Anthropic's shape of an error."""

    type: Literal["error"]
    error: AnthropicErrorDetails
    request_id: str


class MessageEvent(Answer):
    """One event of the stream of /v1/messages."""

    type: Literal[
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop", "ping", "error",
    ]  # fmt: skip
    message: AnthropicMessage | None = None
    index: int | None = None
    content_block: ContentBlock | None = None
    delta: dict[str, str | None] | None = None
    usage: MessageUsage | None = None
    error: dict[str, str] | None = None
    request_id: str | None = None


class TokenCount(Answer):
    """The response of /v1/messages/count_tokens."""

    input_tokens: int
