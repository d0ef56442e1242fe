"""Responses in the background: a task of its own generates each, and its stream is logged for readers."""

import asyncio
import contextlib
from collections.abc import Callable

from aiohttp import web

from server.admission.keyring import Tenant
from server.api.responses.events import error_event
from server.api.responses.response_call import ResponseCall
from server.api.responses.response_object import Response
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED
from server.http.responses.response_runner import ResponseRunner
from server.http.transport.event_stream import EventStreamResponse
from server.protocol.errors import ApiError, shorten
from server.serving.served_models import ServedModels
from server.streams.stream import LoggedStream

MAX_WAIT_S = 10.0  # for the end of a response that was stopped


async def start(served: ServedModels, tenant: Tenant, turn: ResponseCall, request_id: str) -> Response:
    """Starts a background response and stores it; returns the queued response object.

    Raises ApiError where it is refused or there are too many, StoreError where it cannot be stored.
    """
    runner = ResponseRunner(served, tenant)
    writer = runner.new_writer(turn)
    first = writer.queue()
    queued = dict(writer.response)
    is_accepted = not served.find(turn.body.model).is_open  # nothing can refuse it before the model is loaded

    async def produce(stream: LoggedStream) -> None:
        def accept(abort: Callable[[], object]) -> None:
            if not is_accepted:
                for event in first:
                    stream.log.append(event)
            stream.begin(abort)

        if is_accepted:
            await stream.write(first)
        try:
            await runner.run(
                turn, stream, request_id=request_id, writer=writer, is_told=is_accepted, on_accepted=accept
            )
        except asyncio.CancelledError:  # before it was in the engine's queue
            await runner.cancel(turn, writer, stream)
            raise

    await runner.store_queued(turn, queued)
    try:
        stream = served.streams.start(tenant.owner, produce, stream_id=turn.id, is_background=True)
        if not is_accepted:
            await stream.begun()
    except Exception:
        await runner.delete_queued(turn)
        raise
    return queued


def is_running(served: ServedModels, tenant: Tenant, response_id: str) -> bool:
    """Whether the tenant's response is still being generated."""
    stream = served.streams.get(tenant.owner, response_id)
    return stream is not None and stream.is_running


async def stop(served: ServedModels, tenant: Tenant, response_id: str) -> bool:
    """Ends a response early, and waits for its end; False where it does not run."""
    stream = served.streams.get(tenant.owner, response_id)
    if stream is None or not stream.is_running:
        return False
    stream.stop()
    with contextlib.suppress(ApiError, TimeoutError):
        async with asyncio.timeout(MAX_WAIT_S):
            async for _ in stream.log.read(stream.log.position):
                pass
    return True


def forget(served: ServedModels, tenant: Tenant, response_id: str, *, was_stored: bool) -> None:
    """Stops a response and drops its events, unless it is a foreground response that is not stored yet."""
    stream = served.streams.get(tenant.owner, response_id)
    if stream is not None and (was_stored or stream.is_background):
        served.streams.forget(stream)


async def follow(request: web.Request, response_id: str, start_at: int) -> web.StreamResponse:
    """Streams the events of a response from number `start_at` to the end; raises ApiError if they are not kept."""
    served = request.app[SERVED]
    stream = served.streams.get(request[TENANT].owner, response_id)
    if stream is None:
        raise ApiError(
            f"the events of the response {shorten(response_id)} are not kept; only those of a response in the "
            "background are, for a while. Without stream=true the response comes whole",
            param="stream",
            code="events_not_kept",
        )
    with stream.reading() as events_log:
        response = EventStreamResponse(
            request,
            served.settings,
            encode_error=lambda error: error_event(error, events_log.num_events),
        )
        async with response:
            reader = events_log.read((start_at,))
            first = [entry.event for entry in await anext(reader, [])]  # an error before it has a status
            await reader.aclose()
            await response.write(first)
            follower = response.follower(lambda _, event: event)
            async for entries in events_log.read((start_at + len(first),), follower):
                await response.write([entry.event for entry in entries])
            await response.end()
        return response.response
