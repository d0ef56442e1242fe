"""One call for a response: from the body and the items before it to the generation request."""

import time
from collections.abc import Sequence
from functools import partial

from server.api.openai.call import to_request
from server.api.responses.item_conversion import to_messages
from server.api.responses.items import Item, item_id, new_response_id, shape_items
from server.api.responses.response_object import Response, new_response
from server.api.responses.responses_request import ResponsesRequest
from server.api.responses.truncation import TruncatedConversation
from server.generation.generation_request import GenerationRequest
from server.generation.prompt_sources import Conversation, PromptSource


class ResponseCall:
    """A call whose body was validated; a warm-up computes the prompt only."""

    def __init__(self, body: ResponsesRequest, *, stream_id: str | None = None, is_warm_up: bool = False) -> None:
        self.body = body
        self.stream_id = stream_id
        self.is_warm_up = is_warm_up
        self.id = new_response_id()
        self.created_at = int(time.time())
        self.given: list[Item] = shape_items(body.input, self.item_id)
        self.before: list[Item] = []
        self.response: Response = new_response(body, self.id, self.created_at)  # as it begins

    @property
    def ignored(self) -> Sequence[str]:
        return self.body.ignored

    def item_id(self, kind: str, index: int) -> str:
        """The id of an item; those of the input are counted first."""
        return item_id(kind if kind != "item_reference" else "message", self.id, index)

    def output_id(self, kind: str, index: int) -> str:
        """The id of an item of the output."""
        return self.item_id(kind, len(self.given) + index)

    def to_request(self) -> GenerationRequest:
        """The generation request. May take long where many items precede it."""
        body = self.body
        conversation = Conversation(
            to_messages([*self.before, *self.given], body.instructions),
            tools=[tool.to_template() for tool in body.prompt_tools],
            variables=body.template_variables,
        )
        max_tokens = 1 if self.is_warm_up else body.max_output_tokens
        prompt: PromptSource = conversation
        if body.truncation == "auto":
            prompt = TruncatedConversation(conversation, max_tokens)
        make = partial(
            to_request, body, [prompt], prompt_parameter="input", strict_calls=body.strict_calls,
            thinking_budget=body.thinking_token_budget,
        )  # fmt: skip
        return make(max_tokens=max_tokens, max_tokens_parameter="max_output_tokens")
