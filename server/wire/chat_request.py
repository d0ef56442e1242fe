"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from sampling.host.params import MAX_LOGPROBS
from server.wire.errors import ApiError, shorten
from server.wire.generation_fields import GenerationFields
from server.wire.strangers import CHAT, MESSAGE, Strangers
from server.wire.strict_model import StrictModel, bounded

MAX_MESSAGES = 4096
MAX_PARTS = 1024  # of one message's content


def _as_logprobs_switch(value: Any) -> Any:
    """Refuses a number, which is what the completions route takes."""
    if not isinstance(value, bool):
        raise ValueError(
            f"logprobs is {shorten(value)}; it must be true or false, and top_logprobs is the number of alternatives"
        )
    return value


def _as_text(value: Any) -> str:
    """A message's content, which is a string or a list of text parts; parts are joined by line ends."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise ValueError(f"content is {shorten(value)}; it must be a string or a list of text parts")
    if len(value) > MAX_PARTS:
        raise ValueError(f"content has {len(value)} entries; at most {MAX_PARTS} are allowed")
    texts = []
    for part in value:
        if not isinstance(part, dict) or "type" not in part:
            raise ValueError(f'content has the part {shorten(part)}; it must look like {{"type":"text","text":"…"}}')
        if part["type"] != "text":
            raise ValueError(
                f"content has a part of type {shorten(part['type'])}; only text is supported by this server"
            )
        if not isinstance(part.get("text"), str):
            raise ValueError(f'content has the part {shorten(part)}; it must look like {{"type":"text","text":"…"}}')
        texts.append(part["text"])
    return "\n".join(texts)


class Message(StrictModel):
    """One message of a conversation, which may be an answer as a client's library hands it on."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, BeforeValidator(_as_text)]
    name: str | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    annotations: Any = None  # where an answer's citations come from; nothing that the model is told

    @model_validator(mode="before")
    @classmethod
    def _as_libraries_send_it(cls, value: Any, info: ValidationInfo) -> Any:
        """Leaves out what the template cannot be told, and takes an answer without text for an empty one."""
        strangers = info.context if isinstance(info.context, Strangers) else Strangers()
        value = strangers.sort_out(value, cls.model_fields, MESSAGE, "messages[].")
        if isinstance(value, dict) and value.get("role") == "assistant" and value.get("content", "") is None:
            return {**value, "content": ""}
        return value

    def to_template(self) -> dict[str, str]:
        """The message as chat templates know it: `developer` is the newer name of `system`."""
        message = {"role": "system" if self.role == "developer" else self.role, "content": self.content}
        for name in ("name", "tool_call_id", "reasoning_content"):
            value = getattr(self, name)
            if value is not None:
                message[name] = value
        return message


class ChatCompletionRequest(GenerationFields):
    """OpenAI's chat completion request."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True), bounded("messages", MAX_MESSAGES)]
    max_completion_tokens: int | None = None  # the newer name of max_tokens, which it overrides
    parse_special: bool | None = None  # whether names of control tokens in messages become those tokens
    logprobs: Annotated[bool, BeforeValidator(_as_logprobs_switch)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None

    @classmethod
    def parse(cls, body: Any) -> ChatCompletionRequest:
        """Checks a decoded JSON body.

        Raises:
            ApiError, FieldError, ValidationError: it is not a valid request.
        """
        return cls.without_strangers(body, CHAT)

    @model_validator(mode="after")
    def _top_logprobs_need_logprobs(self) -> ChatCompletionRequest:
        if self.top_logprobs and not self.logprobs:
            raise ApiError(
                f"top_logprobs is {self.top_logprobs} and logprobs is not true; it is only allowed with logprobs",
                param="top_logprobs",
                code="invalid_value",
            )
        return self

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
