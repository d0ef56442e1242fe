"""Handler of GET /openapi.json."""

import asyncio
from collections.abc import Collection

import orjson
from aiohttp import web

from server.admission.workers import Workers
from server.startup.version import eagre_version


def add_routes(app: web.Application, workers: Workers, *, is_strict: bool, apis: Collection[str]) -> None:
    """
    Args:
        workers: threads in which the document is built.
        is_strict: whether the server refuses parameters that it does not know.
        apis: the APIs that the server has.
    """
    making: list[asyncio.Task[bytes]] = []  # the document, once it was requested

    async def show(_request: web.Request) -> web.Response:
        if not making:  # later requests wait for the same task, because building takes long
            making.append(asyncio.create_task(workers.run_long(_encode, is_strict=is_strict, apis=apis)))
        return web.Response(body=await asyncio.shield(making[0]), content_type="application/json")

    app.router.add_get("/openapi.json", show)


def _encode(*, is_strict: bool, apis: Collection[str]) -> bytes:
    from server.api.openapi.openapi import build_document  # its many models would make a start longer

    return orjson.dumps(build_document(eagre_version(), is_strict=is_strict, apis=apis))
