"""Drives a route whose calls are POST requests: from the body to a stream of chunks, or to one JSON body.

A call is ended early by whoever made it, by its id.
"""

from __future__ import annotations

from contextlib import ExitStack

from aiohttp import web
from aiohttp.typedefs import Handler

from server.api.route import AnswerContext, BodyCall, BodyRoute
from server.generation.observer import GenerationObserver
from server.http.entry.access_log import REQUEST_ID
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED, read_asked
from server.http.streams import held_stream
from server.http.streams.fronted import read_front
from server.http.streams.held_stream import NOT_HELD, HeldStream
from server.http.streams.kept_requests import kept_requests
from server.http.streams.sse import EventStream
from server.http.transport.json_body import json_response, send_whole
from server.protocol.errors import ApiError, shorten
from server.serving.served_model import ServedModel
from server.serving.submit import Submission
from server.streams.held_answer import HeldAnswer


def make_handler(route: BodyRoute) -> Handler:
    """The handler of the calls of `route`."""

    async def handle(request: web.Request) -> web.StreamResponse:
        with ExitStack() as preparing:
            call = await read_asked(request, route.parse, preparing)
            if call.is_streamed:
                return await _stream(request, route, call, preparing)
            return await _answer_whole(request, route, call, preparing)

    return handle


async def _stream(request: web.Request, route: BodyRoute, call: BodyCall, preparing: ExitStack) -> web.StreamResponse:
    served, ids, held_id = request.app[SERVED], _ids(request, call), None
    if call.request.streaming.is_resumable:
        response = await _stream_resumable(request, route, call, preparing)
        if response is not None:
            return response
        held_id = NOT_HELD
    async with EventStream(request, route, served, held_id) as stream:
        model = served.find(call.request.model)
        served.check_room_to_wait(model)  # now, because a stream that is open has its status
        if not model.is_open:
            await stream.open()  # the client waits for the model, and sees that it does
        observers: list[GenerationObserver] = []
        if call.request.streaming.tells_progress:
            observers.append(stream.progress_observer(call, ids[0], model))
        async with served.generate(model, Submission(call.request, request[TENANT], ids, observers)) as generation:
            preparing.close()  # from here on the limits of the engine's queue hold
            writer = call.make_writer(generation, _context(request, route, call, model))
            await stream.open(writer.begin())
            await stream.stream(generation, writer)
    return stream.response


async def _stream_resumable(
    request: web.Request, route: BodyRoute, call: BodyCall, preparing: ExitStack
) -> web.StreamResponse | None:
    """None where the server has no room to hold another stream, and the client gets a plain one."""
    served = request.app[SERVED]
    model = served.find(call.request.model)
    front = read_front(request)
    stream_id, after = (None, None) if front is None else front
    # A front that comes back finds the stream that it has left.
    answer = None if stream_id is None else served.held.get(request[TENANT].owner, stream_id)
    is_new = answer is None
    if answer is None:
        if after is None:
            served.check_room_to_wait(model)
        held = HeldStream(
            served, kept_requests(request), model, route, call, route.framing, _ids(request, call)[0],
            request[TENANT], _ids(request, call), is_recomputed=after is not None, is_fronted=front is not None,
        )  # fmt: skip
        answer = held_stream.start(held, stream_id)
    if answer is None:
        return None
    return await _follow(request, route, answer, preparing, after, is_new=is_new)


async def _follow(
    request: web.Request, route: BodyRoute, answer: HeldAnswer, preparing: ExitStack, after: str | None, *, is_new: bool
) -> web.StreamResponse:
    """Streams a resumable stream to the client that has asked for it.

    Args:
        after: the place of the last event that the client has from another server; None: it has none.
    """
    served = request.app[SERVED]
    _, held = held_stream.find(served.held, answer.owner, answer.id)
    async with EventStream(request, route, served, answer.id, is_fronted=held.is_fronted) as stream:
        try:
            with answer.reading() as events:
                if not held.model.is_open:
                    await stream.open()
                async with held.tell_load(stream.open):
                    await answer.begun()
                preparing.close()
                await stream.open()
                lanes = held.open(events)
                await stream.follow(answer.id, lanes, lanes.beginning if after is None else lanes.parse(after))
        finally:
            if is_new and not stream.is_open:
                served.held.forget(answer)  # the client has never learnt its id
    return stream.response


async def _answer_whole(
    request: web.Request, route: BodyRoute, call: BodyCall, preparing: ExitStack
) -> web.StreamResponse:
    served = request.app[SERVED]
    model = served.find(call.request.model)
    submission = Submission(call.request, request[TENANT], _ids(request, call))
    async with served.generate(model, submission) as generation:
        preparing.close()
        writer = call.make_writer(generation, _context(request, route, call, model))
        answers = await generation.collect()

        def respond() -> web.Response:
            return json_response(writer.to_dict(answers))

        response = await served.workers.run(respond) if writer.is_slow else respond()
        return await send_whole(request, response, served.settings, is_owed=True)


def _ids(request: web.Request, call: BodyCall) -> tuple[str, str]:
    """The header has one, the answer the other."""
    return call.request_id or request[REQUEST_ID], request[REQUEST_ID]


def _context(request: web.Request, route: BodyRoute, call: BodyCall, model: ServedModel) -> AnswerContext:
    return AnswerContext(
        route.framing, call.request_id or request[REQUEST_ID], model.model_name, model.tokenizer, model.answer_format
    )


async def cancel(request: web.Request) -> web.Response:
    """POST /v1/requests/{id}/cancel and DELETE /v1/requests/{id}: a generation of the same key ends with "abort"."""
    served, request_id = request.app[SERVED], request.match_info["id"]
    is_cancelled = served.requests.cancel(request[TENANT].salt, request_id)
    if is_cancelled is None:
        raise ApiError(
            f"no request with the id {shorten(request_id)} is known; its X-Request-Id or request_id names a request",
            status=404,
            param="id",
            code="unknown_request",
        )
    return json_response({"id": request_id, "object": "request.cancellation", "cancelled": is_cancelled})
