"""The playground's files, read once at start-up and served from memory."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from aiohttp import ETag, web

_SERVED_SUFFIXES = (".html", ".css", ".svg", ".js")
_HEADERS = {
    "Cache-Control": "no-cache",  # a browser asks each time, and mostly gets a 304
    "Content-Security-Policy": (
        "default-src 'self'; connect-src 'self' ws: wss:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
}
_TYPES = {".js": "text/javascript"}  # modules are refused under any other, whatever the machine's table says


class StaticFile(NamedTuple):
    body: bytes
    content_type: str
    etag: str


def load_playground() -> dict[str, StaticFile]:
    """Every file of the `static` package that is served, by its path in the package.

    A request can name only what is in this table, so there is no path to climb out of.
    """
    return {path: _load(path, file) for path, file in _walk(files("static"), "")}


def add_routes(app: web.Application) -> None:
    """GET /, GET /docs and GET /static/…"""
    table = load_playground()

    async def docs(request: web.Request) -> web.StreamResponse:
        return _respond(request, table.get("docs/index.html"))

    async def index(request: web.Request) -> web.StreamResponse:
        return _respond(request, table.get("index.html"))

    async def static(request: web.Request) -> web.StreamResponse:
        return _respond(request, table.get(request.match_info["path"]))

    app.router.add_get("/", index)
    app.router.add_get("/docs", docs)
    app.router.add_get("/static/{path:.+}", static)


def lighten(text: str) -> str:
    """A file without its indentation and without the lines that are nothing but comments, a third less to send.

    Every line keeps its number, so that what a browser says of a line is true of the file. The playground's files have
    no texts of several lines, which would change.
    """
    lines: list[str] = []
    is_comment = False
    for line in text.split("\n"):
        line = line.strip()
        if not is_comment and line.startswith("//"):
            line = ""
        is_comment = is_comment or line.startswith("/*")
        if is_comment:
            _, end, line = line.partition("*/")
            is_comment = end == ""
            line = line.strip() if end else ""
        lines.append(line)
    return "\n".join(lines)


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(_SERVED_SUFFIXES):
            yield prefix + entry.name, entry


def _load(path: str, file: Traversable) -> StaticFile:
    body = lighten(file.read_text("utf-8")).encode()
    suffix = path[path.rindex(".") :]
    content_type = _TYPES.get(suffix) or mimetypes.types_map[suffix]
    return StaticFile(body, content_type, hashlib.sha256(body).hexdigest()[:32])


def _respond(request: web.Request, file: StaticFile | None) -> web.StreamResponse:
    if file is None:
        raise web.HTTPNotFound
    is_known = any(etag.value in (file.etag, "*") for etag in request.if_none_match or ())
    response = (
        web.Response(status=304, headers=_HEADERS)
        if is_known
        else web.Response(body=file.body, headers=_HEADERS, content_type=file.content_type, charset="utf-8")
    )
    response.etag = ETag(file.etag)
    return response
