"""One call for a response: from the body and the items before it to the generation request."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from server.api.openai.call import to_request
from server.api.responses.client_tools import read_tools
from server.api.responses.item_conversion import refuse_stray_outputs, to_messages
from server.api.responses.items import WITH_PICTURES, Item, content_of, item_id, new_response_id, shape_items
from server.api.responses.offered_tools import OfferedTools
from server.api.responses.response_object import Response, new_response
from server.api.responses.responses_request import ResponsesRequest
from server.api.responses.truncation import TruncatedConversation
from server.generation.generation_request import GenerationRequest
from server.generation.prompt_sources import Conversation, PromptSource
from server.media.picture import Picture, pictures_of
from server.protocol.errors import ApiError, invalid_value
from server.protocol.structured_outputs import GrammarRequest

_WITH_TOOLS = ("additional_tools", "tool_search_output")


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
        self.tools = OfferedTools(())  # known with the request
        self.response: Response = new_response(body, self.id, self.created_at)  # as it begins

    @property
    def ignored(self) -> Sequence[str]:
        return self.body.ignored

    @property
    def model_name(self) -> str | None:
        """The name of the model that the client gave."""
        return self.body.model

    @property
    def pictures(self) -> Sequence[Picture]:
        """The pictures of the items that the request has itself."""
        contents = [
            content_of(item[field], f"input[{at}].{field}")
            for at, item in enumerate(self.given)
            for field in ("content", "output")
            if item["type"] in WITH_PICTURES and field in item
        ]
        return tuple(pictures_of({"content": content} for content in contents))

    def item_id(self, kind: str, index: int) -> str:
        """The id of an item; those of the input are counted first."""
        return item_id(kind if kind != "item_reference" else "message", self.id, index)

    def output_id(self, kind: str, index: int) -> str:
        """The id of an item of the output."""
        return self.item_id(kind, len(self.given) + index)

    def conversation(self) -> Conversation:
        """The prompt, and with it the tools. May take long where many items precede it.

        Raises:
            ApiError: a result belongs to no call, or the choice among the tools is invalid.
        """
        body, items = self.body, [*self.before, *self.given]
        refuse_stray_outputs(self.before, self.given)
        more = [tool for item in items if item["type"] in _WITH_TOOLS for tool in read_tools(item["tools"])]
        try:
            self.tools = body.offered_with(more) if more else body.offered_tools
        except ApiError:
            raise
        except ValueError as error:
            raise invalid_value(str(error), "tools") from error
        return Conversation(
            to_messages(items, body.instructions, self.tools, num_before=len(self.before)),
            tools=self.tools.prompt_tools if body.tool_choice != "none" else [],
            variables=body.template_variables,
            switches=body.switches,
        )

    def to_request(self) -> GenerationRequest:
        """The generation request. May take long, and raise, as `conversation`."""
        body, conversation = self.body, self.conversation()
        max_tokens = 1 if self.is_warm_up else body.max_output_tokens
        prompt: PromptSource = conversation
        if body.truncation == "auto":
            prompt = TruncatedConversation(conversation, max_tokens)
        make = partial(
            to_request, body, [prompt], prompt_parameter="input", strict_calls=self.tools.strict_calls,
            thinking_budget=body.thinking_token_budget, declares_tools=bool(self.tools.prompt_tools),
            offered_calls=self.tools.offered_calls,
        )  # fmt: skip
        request = make(max_tokens=max_tokens, max_tokens_parameter="max_output_tokens")
        forced = self.tools.forced_calls
        return request if forced is None else replace(request, grammar=GrammarRequest("tools", forced))
