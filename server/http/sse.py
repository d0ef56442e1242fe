"""A generation as server-sent events."""

from __future__ import annotations

from aiohttp import web

from server.answering.generation import Generation
from server.http.write_watch import WriteWatch
from server.routes.chunks import Chunks
from server.startup.logs import log
from server.startup.settings import ServerSettings
from server.wire.errors import to_api_error

PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # or nginx collects the tokens of a whole buffer
}


def encode_event(data: bytes) -> bytes:
    """`data` (JSON without line breaks) as one event."""
    return b"data: " + data + b"\n\n"


async def respond(
    request: web.Request,
    generation: Generation,
    chunks: Chunks,
    *,
    include_usage: bool,
    settings: ServerSettings,
) -> web.StreamResponse:
    """Streams `generation` to its end.

    The caller owns the generation and aborts it when this is cancelled, which happens when
    the client leaves or its socket stalls beyond the write timeout.
    """
    response = web.StreamResponse(headers=HEADERS)
    await response.prepare(request)

    def cut() -> None:
        if request.transport is not None:
            request.transport.abort()

    watch = WriteWatch(
        response.write,
        cut,
        ping=PING,
        ping_interval=settings.ping_interval,
        write_timeout=settings.write_timeout,
    )
    async with watch:
        # The headers leave with it, before the first token: a proxy sees a living stream.
        await watch.write(PING)
        try:
            async for deltas in generation:
                await watch.write(chunks.encode(deltas))
            end = chunks.encode_usage(generation.usage) + DONE if include_usage else DONE
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - the client is told, the log has the traceback
            # The status is sent; what is left is one error event and the end.
            api_error = to_api_error(error)
            if api_error.status == 500:
                log.exception("stream_failed")
            end = encode_event(api_error.to_json())
        await watch.write(end)
        await watch.finish(response.write_eof)
    return response
