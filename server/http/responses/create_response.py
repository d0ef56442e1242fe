"""POST /v1/responses."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from aiohttp import web

from server.api.responses.response_call import ResponseCall
from server.api.responses.responses_request import ResponsesRequest
from server.http.entry.access_log import REQUEST_ID
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED, SHARE, read_request
from server.http.responses import background
from server.http.responses.response_runner import ResponseRunner
from server.http.responses.resumable_response import ResumableResponse
from server.http.streams.following import follow
from server.http.streams.router_headers import NOT_HELD, STREAM_HEADER
from server.http.transport.event_stream import EventStreamResponse
from server.http.transport.json_body import json_response, send_whole
from server.protocol.errors import ApiError
from server.startup.logs import log


def parse_turn(body: Any) -> ResponseCall:
    """Raises ApiError, FieldError, ValidationError: the decoded JSON body is not a valid request."""
    return ResponseCall(ResponsesRequest.parse(body))


async def create(request: web.Request) -> web.StreamResponse:
    """Answers with one JSON body, or with a stream of events."""
    served = request.app[SERVED]
    with ExitStack() as preparing:
        turn = await read_request(request, parse_turn, preparing)
        runner = ResponseRunner(served, request[TENANT])
        await runner.look_back(turn, request[SHARE])
        served.check_room_to_wait(served.find(turn.body.model))  # before a client is told that it is accepted
        request_id = turn.body.request_id or request[REQUEST_ID]
        if turn.body.background:
            response = await background.start(served, request[TENANT], turn, request_id)
            if turn.body.stream:
                return await background.follow(request, response["id"], 0)
            return await send_whole(request, json_response(response), served.settings, is_owed=True)
        if turn.body.stream:
            return await _stream(request, turn, runner, preparing, request_id)
        accepted = close_on_acceptance(preparing)
        response = await runner.run(turn, None, request_id=request_id, on_accepted=accepted)
        is_slow = turn.body.wants_logprobs  # and so the body is long
        whole = await served.workers.run(json_response, response) if is_slow else json_response(response)
        return await send_whole(request, whole, served.settings, is_owed=True)


async def _stream(
    request: web.Request, turn: ResponseCall, runner: ResponseRunner, preparing: ExitStack, request_id: str
) -> web.StreamResponse:
    served, headers = request.app[SERVED], None
    is_open, accepted = served.find(turn.body.model).is_open, close_on_acceptance(preparing)
    if turn.body.resumable:
        producer = ResumableResponse(served.settings, runner, turn, request_id, accepted, is_told=not is_open)
        try:
            logged = served.streams.start(request[TENANT].owner, producer, stream_id=turn.id)
        except ApiError as error:
            log.warning("stream_not_held", reason=error.message)
            headers = {STREAM_HEADER: NOT_HELD}
        else:
            return await follow(request, producer, logged, None, is_first=True)
    async with EventStreamResponse(request, served.settings, headers=headers) as stream:
        if not is_open:
            await stream.open()  # the client waits for the model, and sees that it does
        await runner.run(turn, stream, request_id=request_id, is_told=not is_open, on_accepted=accepted)
        await stream.end()
    return stream.response


def close_on_acceptance(preparing: ExitStack) -> Callable[[object], None]:
    """Gives the request's share of the budgets back once the limits of the engine's queue hold for it."""

    def accept(abort: object) -> None:
        preparing.close()

    return accept
