"""The routes of the playground: its pages and its files."""

import re
from collections.abc import Callable, Mapping, Sequence

from aiohttp import ETag, web

from server.http.entry.guard import GUARD
from server.http.entry.served import SERVED
from server.http.playground.files import Playground, StaticFile
from server.http.streams.router_headers import KEYED_HEADER

_NONE = re.compile(r"\s*q\s*=\s*0(\.0*)?\s*")  # the weight of an encoding that a client does not take
_SHARED = {"Vary": "Accept-Encoding", "X-Content-Type-Options": "nosniff"}
# The frame in which HTML of an answer is shown: its styles count, its scripts do not, and it can reach nothing.
_PREVIEW = "preview/"
_PREVIEW_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:; font-src data:; media-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
)
_ASK = "no-cache"  # a browser asks each time, and mostly gets a 304
_KEEP = "public, max-age=31536000, immutable"


def add_routes(app: web.Application, state: Callable[[], str], peers: Sequence[str] = ()) -> None:
    """GET /, GET /docs and GET /static/…; the pages with `?modules` load every module by itself, for development.

    Args:
        state: what a page would ask for first, as JSON, which comes with it where no key is wanted; an empty text where
            the server is not ready.
        peers: origins of other servers.
    """
    headers, preview_headers = _headers(peers), _SHARED | {"Content-Security-Policy": _PREVIEW_POLICY}
    playground: Playground | None = None

    async def load(request: web.Request) -> Playground:
        nonlocal playground
        if playground is None:
            playground = await request.app[SERVED].workers.run(Playground, peers)
        return playground

    async def show_page(request: web.Request, path: str) -> web.StreamResponse:
        keys = request.app[GUARD].keys
        is_open = (keys is None or keys.is_open) and KEYED_HEADER not in request.headers
        page = (await load(request)).page(
            path, is_plain="modules" in request.query, is_open=is_open, state=state() if is_open else ""
        )
        return _respond(request, page, headers)

    async def docs(request: web.Request) -> web.StreamResponse:
        return await show_page(request, "docs/index.html")

    async def index(request: web.Request) -> web.StreamResponse:
        return await show_page(request, "index.html")

    async def static(request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        loaded = await load(request)
        file = loaded.loaded.get(path)
        if file is None and path in loaded.paths:
            file = await request.app[SERVED].workers.run(loaded.load, path)
        return _respond(request, file, preview_headers if path.startswith(_PREVIEW) else headers)

    app.router.add_get("/", index)
    app.router.add_get("/docs", docs)
    app.router.add_get("/static/{path:.+}", static)


def _headers(peers: Sequence[str]) -> dict[str, str]:
    connect = " ".join(["'self'", "ws:", "wss:", *peers])
    return _SHARED | {
        "Content-Security-Policy": (
            f"default-src 'self'; connect-src {connect}; img-src 'self' data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
    }


def _takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding header takes gzip; "*" stands for what it does not name (RFC 9110, section 12.5.3)."""
    parts = [part.partition(";") for part in accepted.lower().split(",")]
    weights = {name.strip(): weight for name, _, weight in parts}
    weight = weights.get("gzip", weights.get("*"))
    return weight is not None and not _NONE.fullmatch(weight)


def _respond(request: web.Request, file: StaticFile | None, shared: Mapping[str, str]) -> web.StreamResponse:
    if file is None:
        raise web.HTTPNotFound
    is_kept = file.is_immutable or request.query.get("v") == file.etag
    headers = {**shared, "Cache-Control": _KEEP if is_kept else _ASK}
    is_packed = file.packed is not None and _takes_gzip(request.headers.get("Accept-Encoding", ""))
    etag = file.etag + "-gzip" if is_packed else file.etag  # they are not the same bytes
    if any(known.value in (etag, "*") for known in request.if_none_match or ()):
        response = web.Response(status=304, headers=headers)
    else:
        is_text = file.content_type.startswith("text/") or file.content_type == "image/svg+xml"
        body = file.packed if is_packed else file.body
        charset = "utf-8" if is_text else None
        response = web.Response(body=body, headers=headers, content_type=file.content_type, charset=charset)
        if is_packed:
            response.headers["Content-Encoding"] = "gzip"
    response.etag = ETag(etag)
    return response
