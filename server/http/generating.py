"""The generating POST routes, which answer with a stream of chunks or one JSON body, and their cancellation by id."""

from contextlib import ExitStack

from aiohttp import web
from aiohttp.typedefs import Handler

from engine.interface.types import PromptProgress
from server.api.encoding import write_deltas
from server.api.route import AnswerContext, BodyCall, BodyRoute
from server.generation.observer import GenerationObserver, ProgressObserver
from server.http.entry.access_log import REQUEST_ID
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED, read_request
from server.http.streams import resumable_answer
from server.http.streams.following import follow
from server.http.streams.request_store import REQUEST_STORE
from server.http.streams.resumable_answer import ResumableAnswer
from server.http.streams.router_headers import NOT_HELD, STREAM_HEADER, read_routed_stream
from server.http.transport.event_stream import EventStreamResponse
from server.http.transport.json_body import json_response, send_whole
from server.protocol.errors import ApiError, shorten
from server.serving.served_model import ServedModel
from server.serving.submit import Submission


def make_handler(route: BodyRoute) -> Handler:
    """The handler of the calls of `route`."""

    async def handle(request: web.Request) -> web.StreamResponse:
        with ExitStack() as preparing:
            return await answer(request, route, await read_request(request, route.parse, preparing), preparing)

    return handle


async def answer(request: web.Request, route: BodyRoute, call: BodyCall, preparing: ExitStack) -> web.StreamResponse:
    """Generates, and sends the answer as a stream or whole.

    Args:
        preparing: holds the request's share of the budgets until it is queued.
    """
    if call.is_streamed:
        return await _stream(request, route, call, preparing)
    return await _answer_whole(request, route, call, preparing)


async def _stream(request: web.Request, route: BodyRoute, call: BodyCall, preparing: ExitStack) -> web.StreamResponse:
    served, ids, headers = request.app[SERVED], _ids(request, call), None
    if call.request.streaming.is_resumable:
        response = await _stream_resumable(request, route, call, preparing)
        if response is not None:
            return response
        headers = {STREAM_HEADER: NOT_HELD}
    async with EventStreamResponse(
        request, served.settings, framing=route.framing, headers=headers,
        encode_error=lambda error: route.encode_error_event(error, request[REQUEST_ID]),
    ) as stream:  # fmt: skip
        model = served.find(call.request.model)
        served.check_room_to_wait(model)  # now, because a stream that is open has its status
        if not model.is_open:
            await stream.open()  # the client waits for the model, and sees that it does
        observers: list[GenerationObserver] = []
        if call.request.streaming.tells_progress:

            async def tell(progress: PromptProgress, index: int) -> None:
                await stream.open(
                    call.encode_progress(progress, index, route.framing, ids[0], model.name_of(call.request.model))
                )

            observers.append(ProgressObserver(tell))
        async with served.generate(model, Submission(call.request, request[TENANT], ids, observers)) as generation:
            preparing.close()  # from here on the limits of the engine's queue hold
            writer = call.make_writer(generation, _context(request, route, call, model))
            await stream.open(b"".join(writer.begin()))
            await write_deltas(stream, generation, writer, served.workers)
            await stream.end(writer.end())
    return stream.response


async def _stream_resumable(
    request: web.Request, route: BodyRoute, call: BodyCall, preparing: ExitStack
) -> web.StreamResponse | None:
    """Streams a resumable answer. Returns None if there is no room for its log; the caller then streams it live."""
    served = request.app[SERVED]
    model = served.find(call.request.model)
    routed = read_routed_stream(request)
    stream_id, after = (None, None) if routed is None else routed
    # A router that comes back finds the stream that it has left.
    known = None if stream_id is None else served.streams.get(request[TENANT].owner, stream_id)
    logged = known
    if logged is None:
        if after is None:
            served.check_room_to_wait(model)
        resumable = ResumableAnswer(
            served, request.app[REQUEST_STORE].put, model, route, call, route.framing, _ids(request, call)[0],
            request[TENANT], _ids(request, call), is_recomputed=after is not None, is_routed=routed is not None,
        )  # fmt: skip
        logged = resumable_answer.start(resumable, stream_id)
    if logged is None:
        return None
    _, resumable = resumable_answer.find(served.streams, logged.owner, logged.id)
    return await follow(request, resumable, logged, after, on_begun=preparing.close, is_first=known is None)


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
    """Returns the id in the answer and the id in the X-Request-Id header; both can cancel the request."""
    return call.request_id or request[REQUEST_ID], request[REQUEST_ID]


def _context(request: web.Request, route: BodyRoute, call: BodyCall, model: ServedModel) -> AnswerContext:
    return AnswerContext(
        route.framing,
        call.request_id or request[REQUEST_ID],
        model.name_of(call.request.model),
        model.tokenizer,
        model.answer_format,
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
