"""POST /v1/responses."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from aiohttp import web

from server.http.entry.access_log import REQUEST_ID
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED, read_asked
from server.http.responses.answering import Answering
from server.http.responses.event_channel import EventChannel
from server.routes.responses.events import Event
from server.routes.responses.turn import Turn
from server.transport.json_body import json_response, send_whole
from server.wire.responses.responses_request import ResponsesRequest


def parse_turn(body: Any) -> Turn:
    """
    Raises:
        ApiError, FieldError, ValidationError: the decoded JSON body is not a valid request.
    """
    return Turn(ResponsesRequest.parse(body))


async def create(request: web.Request) -> web.StreamResponse:
    """Answers with one JSON body, or with a stream of events."""
    served = request.app[SERVED]
    with ExitStack() as preparing:
        turn = await read_asked(request, parse_turn, preparing)
        answering = Answering(served, request[TENANT])
        await answering.look_back(turn)
        request_id = turn.body.request_id or request[REQUEST_ID]
        if turn.body.stream:
            return await _stream(request, turn, answering, preparing, request_id)
        response = await answering.answer(turn, None, preparing, request_id=request_id)
        return await send_whole(request, json_response(response), served.settings)


async def _stream(
    request: web.Request, turn: Turn, answering: Answering, preparing: ExitStack, request_id: str
) -> web.StreamResponse:
    served = request.app[SERVED]
    async with EventChannel(request, served.settings) as channel:

        async def deliver(events: Sequence[Event]) -> None:
            await channel.write(b"".join(event.to_sse() for event in events))

        writer = None
        if not served.find(turn.body.model).is_open:
            await channel.open()  # the client waits for the model, and sees that it does
            writer = answering.new_writer(turn)
        await answering.answer(turn, deliver, preparing, request_id=request_id, writer=writer)
        await channel.end()
        return channel.response
