"""GET /openapi.json."""

from __future__ import annotations

import asyncio

import orjson
from aiohttp import web

from server.startup.version import eagre_version


def add_routes(app: web.Application, *, is_strict: bool) -> None:
    """
    Args:
        is_strict: whether the server refuses parameters that it does not know.
    """
    encoded: list[bytes] = []  # the document, once it has been asked for

    async def show(_request: web.Request) -> web.Response:
        if not encoded:
            encoded.append(await asyncio.to_thread(_encode, is_strict=is_strict))
        return web.Response(body=encoded[0], content_type="application/json")

    app.router.add_get("/openapi.json", show)


def _encode(*, is_strict: bool) -> bytes:
    from server.documents.openapi import build_document  # its many models would make a start longer

    return orjson.dumps(build_document(eagre_version(), is_strict=is_strict))
