"""Responses that are made without anybody waiting: a task makes them, and their events are kept for readers."""

from __future__ import annotations

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
from server.http.responses.answering import Answering
from server.http.responses.audience import LogAudience
from server.http.transport.event_channel import EventChannel
from server.protocol.errors import ApiError, shorten
from server.serving.served_models import ServedModels
from server.startup.logs import failure_of
from server.streams.held_answer import HeldAnswer

MAX_WAIT_S = 10.0  # for the end of a response that was stopped


async def start(served: ServedModels, tenant: Tenant, turn: ResponseCall, request_id: str) -> Response:
    """Begins to make a response; returns it as it is now, once it is stored.

    Raises:
        ApiError: the request is refused, or too many responses are being made.
        StoreError: it cannot be stored.
    """
    answering = Answering(served, tenant)
    writer = answering.new_writer(turn)
    first = writer.queue()
    queued = dict(writer.response)
    is_accepted = not served.find(turn.body.model).is_open  # nothing can refuse it before the model is loaded

    async def work(answer: HeldAnswer) -> None:
        audience = LogAudience(answer.log, answer.log.append)

        def accept(abort: Callable[[], object]) -> None:
            if not is_accepted:
                for event in first:
                    answer.log.append(event.to_sse())
            answer.begin(abort)

        if is_accepted:
            await audience.deliver(first)
        try:
            await answering.answer(
                turn, audience, request_id=request_id, writer=writer, is_told=is_accepted, on_accepted=accept
            )
        except asyncio.CancelledError:  # before it was in the engine's queue
            await answering.give_up(turn, writer, audience)
            raise

    await answering.keep_begun(turn, queued)
    try:
        answer = served.held.start(tenant.owner, work, answer_id=turn.id, is_background=True)
        if not is_accepted:
            await answer.begun()
    except Exception:
        await answering.forget(turn)
        raise
    return queued


def is_running(served: ServedModels, tenant: Tenant, response_id: str) -> bool:
    """Whether the tenant's response is still being made."""
    answer = served.held.get(tenant.owner, response_id)
    return answer is not None and answer.is_running


async def stop(served: ServedModels, tenant: Tenant, response_id: str) -> bool:
    """Ends a response early, and waits for its end; False where it does not run."""
    answer = served.held.get(tenant.owner, response_id)
    if answer is None or not answer.is_running:
        return False
    answer.stop()
    with contextlib.suppress(ApiError, TimeoutError):
        async with asyncio.timeout(MAX_WAIT_S):
            async for _ in answer.log.read(answer.log.num_events):
                pass
    return True


def forget(served: ServedModels, tenant: Tenant, response_id: str, *, was_stored: bool) -> None:
    """Stops a response and gives up its events, unless it is not stored yet, because its stream has not ended."""
    answer = served.held.get(tenant.owner, response_id)
    if answer is not None and (was_stored or answer.is_background):
        served.held.forget(answer)


async def tell_failure(channel: EventChannel, error: Exception, number: int) -> None:
    """Writes the event that ends a stream which cannot be read on; must be called where the error is handled.

    Args:
        number: of the event.
    """
    await channel.write(error_event(failure_of(error, "stream_failed"), number).to_sse())


async def follow(request: web.Request, response_id: str, start_at: int) -> web.StreamResponse:
    """Streams the events of a response from a number on, to its end.

    Raises:
        ApiError: the events are not kept (any more).
    """
    served = request.app[SERVED]
    answer = served.held.get(request[TENANT].owner, response_id)
    if answer is None:
        raise ApiError(
            f"the events of the response {shorten(response_id)} are not kept; only those of a response in the "
            "background are, for a while. Without stream=true the response comes whole",
            param="stream",
            code="events_not_kept",
        )
    with answer.reading() as events_log:
        async with EventChannel(request, served.settings) as channel:
            try:
                async for events in events_log.read(start_at):
                    await channel.write(b"".join(events.events))
                await channel.open()
            except ConnectionError:
                raise
            except Exception as error:
                if not channel.is_open:
                    raise
                await tell_failure(channel, error, events_log.num_events)
            await channel.end()
            return channel.response
