"""POST /v1/messages: from the request body to the prompt, and to the writer of the answer."""

from __future__ import annotations

from typing import Any

from engine.interface.types import PromptProgress
from server.api.anthropic.block_writer import BlockWriter
from server.api.anthropic.message_objects import MESSAGE_EVENTS, encode_error, encode_event, error_object
from server.api.anthropic.message_writer import MessageWriter
from server.api.anthropic.messages_request import CountTokensRequest, MessagesRequest
from server.api.framing import Framing
from server.api.openai.openai_objects import progress_object
from server.api.route import AnswerContext, BodyCall, BodyRoute
from server.generation.generation import Generation
from server.generation.generation_request import GenerationRequest
from server.generation.prompt_sources import Conversation


def conversation_of(body: CountTokensRequest) -> Conversation:
    return Conversation(
        body.conversation,
        tools=[] if body.may_not_call else [tool.to_template() for tool in body.offered_tools],
        begins_turn=not body.continues,
        continues=body.continues,
        variables=body.template_variables,
        plain_messages=body.plain_conversation,
    )


class MessagesCall(BodyCall):
    """A request for the next message of a conversation."""

    def __init__(self, body: MessagesRequest) -> None:
        self._body = body
        request = GenerationRequest(
            [conversation_of(body)],
            body.sampling,
            prompt_parameter="messages",
            model=body.model,
            default_max_tokens=body.max_tokens,  # clients ask for as many as the largest models can write
            stops=body.stop_sequences,
            grammar=body.grammar_request,
            strict_calls=body.strict_calls,
            offered_calls=body.offered_calls,
            declares_tools=bool(body.tools),
            thinking_budget=body.thinking_budget,
            streaming=body.streaming,
        )
        super().__init__(request, None, body.ignored, body.stream is True)

    @classmethod
    def parse(cls, body: Any) -> MessagesCall:
        return cls(MessagesRequest.parse(body))

    def make_writer(self, generation: Generation, context: AnswerContext) -> MessageWriter:
        body, must_call = self._body, self._body.forced_calls is not None
        parts = context.answer_format.of_request(
            may_call=body.may_call,
            must_call=must_call,
            schemas={tool.function.name: tool.function.parameters for tool in body.offered_tools},
            is_parallel=body.tool_policy.is_parallel,
        )
        shows = body.thinking is not None and body.thinking.display != "omitted"
        blocks = BlockWriter(with_thinking=body.wants_thinking, shows_thinking=shows)
        return MessageWriter(generation, context, parts, blocks, body.max_tokens)

    def encode_progress(
        self, progress: PromptProgress, index: int, framing: Framing, request_id: str, model: str
    ) -> bytes:
        """A ping, which Anthropic's clients ignore."""
        return encode_event("ping", prompt_progress=progress_object(progress, index))


MESSAGES = BodyRoute("/v1/messages", MessagesCall.parse, error_object, MESSAGE_EVENTS, encode_error)
