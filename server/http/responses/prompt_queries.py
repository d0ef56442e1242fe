"""POST /v1/responses/input_tokens and /v1/responses/compact."""

from __future__ import annotations

from contextlib import ExitStack

from aiohttp import web

from engine.interface.types import FinishReason
from sampling.host.params import InvalidParameter
from server.api.conversations.compaction import compaction_object, compaction_request
from server.api.responses.response_call import ResponseCall
from server.generation.prompt_sources import Conversation
from server.http.entry.access_log import REQUEST_ID
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED, SHARE, decode_pictures, in_memory, read_request
from server.http.responses.create_response import close_on_acceptance, parse_turn
from server.http.responses.response_runner import ResponseRunner
from server.http.transport.json_body import json_response, send_whole
from server.output_parsers.output_parser import OutputParser
from server.output_parsers.reading.parser_events import ContentDelta
from server.protocol.errors import SERVER_ERROR, ApiError
from server.serving.submit import Submission

MAX_COUNTED = 1 << 18  # tokens of a prompt; counting more would take a worker thread for long


async def count_input(request: web.Request) -> web.StreamResponse:
    """POST /v1/responses/input_tokens: the number of tokens that the prompt of a response would have."""
    served = request.app[SERVED]
    with ExitStack() as preparing:
        turn = await _read(request, preparing)
        model = served.find(turn.body.model)

        def count(conversation: Conversation) -> int:
            try:
                return len(conversation.encode(model.text_model_of(turn.body.model), MAX_COUNTED))
            except InvalidParameter as error:  # which speaks of a context of so many tokens
                raise InvalidParameter(
                    "input", f"input has more than {MAX_COUNTED} tokens, the limit of this route"
                ) from error

        async with in_memory(served, model):
            conversation = await served.workers.run_long(turn.conversation)
            decoded = await decode_pictures(conversation.pictures, model, served)
            num_tokens = await served.workers.run_long(count, conversation.with_decoded(decoded))
    told = {"object": "response.input_tokens", "input_tokens": num_tokens}
    return await send_whole(request, json_response(told), served.settings)


async def compact(request: web.Request) -> web.StreamResponse:
    """POST /v1/responses/compact: a summary in the place of a conversation."""
    served = request.app[SERVED]
    with ExitStack() as preparing:
        turn = await _read(request, preparing)
        if turn.body.model is None:
            raise ApiError("model is required", param="model", code="missing_required_parameter")
        model = served.find(turn.body.model)
        asked = await served.workers.run(compaction_request, turn)
        submission = Submission(asked, request[TENANT], (turn.id, turn.body.request_id or request[REQUEST_ID]))
        texts: list[str] = []
        async with served.generate(model, submission) as generation:
            close_on_acceptance(preparing)(None)
            form = model.answer_format.of_request(may_call=False, must_call=False)
            parts = OutputParser(form, generation.prompts[0].token_ids, generation.tokenizer)
            async for deltas in generation:
                for delta in deltas:
                    events = parts.feed(delta.text, delta.token_ids, is_last=delta.finish_reason is not None)
                    texts += [event.text for event in events if isinstance(event, ContentDelta)]
    if generation.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
        raise ApiError(
            "the summary was cancelled before its end", status=503, error_type=SERVER_ERROR, code="cancelled"
        )
    told = compaction_object(turn, "".join(texts).strip(), generation.usage, parts.num_reasoning_tokens)
    return await send_whole(request, json_response(told), served.settings, is_owed=True)


async def _read(request: web.Request, preparing: ExitStack) -> ResponseCall:
    """The request with the items that precede it."""
    turn = await read_request(request, parse_turn, preparing)
    await ResponseRunner(request.app[SERVED], request[TENANT]).look_back(turn, request[SHARE])
    return turn
