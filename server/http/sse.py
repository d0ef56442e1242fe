"""Writes a generation to an HTTP response, chunk by chunk."""

from __future__ import annotations

import orjson
from aiohttp import web

from server.answering.generation import Generation
from server.http.served_model import ServedModel
from server.routes.encoding import encode
from server.routes.route import BodyRoute, StreamWriter
from server.startup.logs import log
from server.transport.write_watch import WriteWatch
from server.wire.errors import ApiError, to_api_error


async def respond(
    request: web.Request,
    route: BodyRoute,
    generation: Generation,
    writer: StreamWriter,
    served: ServedModel,
) -> web.StreamResponse:
    """Streams `generation` to its end.

    The caller owns the generation and aborts it when this is cancelled, which happens when
    the client leaves or its socket stalls beyond the write timeout.
    """
    framing, settings = route.framing, served.settings
    response = web.StreamResponse(headers=framing.headers)
    await response.prepare(request)

    def cut() -> None:
        if request.transport is not None:
            request.transport.abort()

    watch = WriteWatch(
        response.write,
        cut,
        ping=framing.ping,
        ping_interval=settings.ping_interval,
        write_timeout=settings.write_timeout,
    )
    async with watch:
        # The headers leave with this ping, before the first token, so that a proxy sees a living stream.
        await watch.write(framing.ping + writer.begin())
        try:
            async for deltas in generation:
                await watch.write(b"".join(await encode(writer, deltas, served.workers)))
            end = writer.end()
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - the client is told, the log has the traceback
            # The status is sent; what is left is one error event and the end.
            end = framing.frame(orjson.dumps(route.shape_error(_log_failure(to_api_error(error)))))
        await watch.write(end)
        await watch.finish(response.write_eof)
    return response


def _log_failure(error: ApiError) -> ApiError:
    """Returns `error`, which the caller must not keep: its traceback keeps the caller's variables alive."""
    if error.status == 500:
        log.exception("stream_failed")
    return error
