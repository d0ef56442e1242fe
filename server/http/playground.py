"""The playground's files, read once, when the first of them is asked for, and served from memory."""

import gzip
import hashlib
import html
import mimetypes
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from aiohttp import ETag, web

from server.http.entry.served import SERVED

_SERVED_SUFFIXES = (".html", ".css", ".svg", ".js")
_PEERS = b'id="peers" content=""'  # of the page, where the servers stand that it may ask beside its own
_COMMENT = re.compile(r"""((?:[^"'`/]|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`(?:[^`\\]|\\.)*`|/(?!/))*?)\s+//\s.*""")
_TYPES = {".js": "text/javascript"}  # modules are refused under any other, whatever the machine's table says
_NONE = re.compile(r"\s*q\s*=\s*0(\.0*)?\s*")  # the weight of an encoding that a client does not take
_SPACES = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|\s*([=,(){};:])\s*""")


class StaticFile(NamedTuple):
    body: bytes
    packed: bytes  # the body, compressed with gzip
    content_type: str
    etag: str


def load_playground(peers: Sequence[str] = ()) -> dict[str, StaticFile]:
    """Every file of the `static` package that is served, by its path in the package; no other path can be named.

    `peers` are origins of other servers that the page offers for comparison.
    """
    table = {path: _load(path, file) for path, file in _walk(files("static"), "")}
    index = table["index.html"]
    named = _PEERS.replace(b'""', b'"%b"' % html.escape(" ".join(peers)).encode())
    return {**table, "index.html": _make(index.body.replace(_PEERS, named), index.content_type)}


def add_routes(app: web.Application, peers: Sequence[str] = ()) -> None:
    """GET /, GET /docs and GET /static/…"""
    headers, loaded = _headers(peers), dict[str, StaticFile]()

    async def respond(request: web.Request, path: str) -> web.StreamResponse:
        if not loaded:
            loaded.update(await request.app[SERVED].workers.run(load_playground, peers))
        return _respond(request, loaded.get(path), headers)

    async def docs(request: web.Request) -> web.StreamResponse:
        return await respond(request, "docs/index.html")

    async def index(request: web.Request) -> web.StreamResponse:
        return await respond(request, "index.html")

    async def static(request: web.Request) -> web.StreamResponse:
        return await respond(request, request.match_info["path"])

    app.router.add_get("/", index)
    app.router.add_get("/docs", docs)
    app.router.add_get("/static/{path:.+}", static)


def lighten(text: str, *, is_script: bool = True) -> str:
    """A file without its indentation and its comments; a script also without needless spaces.

    Every line keeps its number. The playground's files have no texts of several lines, which would change.
    """
    lines: list[str] = []
    is_comment = False
    for line in text.split("\n"):
        line = line.strip()
        if not is_comment and "//" in line:
            line = _without_comment(line)
        is_comment = is_comment or line.startswith("/*")
        if is_comment:
            _, end, line = line.partition("*/")
            is_comment = end == ""
            line = line.strip() if end else ""
        lines.append(_tighten(line) if is_script else line)
    return "\n".join(lines)


def _tighten(line: str) -> str:
    """A line of JavaScript without spaces beside its marks, where that is certain: it has no template and no regex."""
    return line if "`" in line or "/" in line else _SPACES.sub(lambda found: found[1] or found[2], line)


def _without_comment(line: str) -> str:
    """A line of code without the comment at its end; texts in quotes stay whole."""
    if line.startswith("//"):
        return ""
    found = _COMMENT.fullmatch(line)
    return line if found is None else found[1]


def _headers(peers: Sequence[str]) -> dict[str, str]:
    connect = " ".join(["'self'", "ws:", "wss:", *peers])
    return {
        "Vary": "Accept-Encoding",
        "Cache-Control": "no-cache",  # a browser asks each time, and mostly gets a 304
        "Content-Security-Policy": (
            f"default-src 'self'; connect-src {connect}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "X-Content-Type-Options": "nosniff",
    }


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(_SERVED_SUFFIXES):
            yield prefix + entry.name, entry


def _load(path: str, file: Traversable) -> StaticFile:
    suffix = path[path.rindex(".") :]
    body = lighten(file.read_text("utf-8"), is_script=suffix == ".js").encode()
    content_type = _TYPES.get(suffix) or mimetypes.types_map[suffix]
    return _make(body, content_type)


def _make(body: bytes, content_type: str) -> StaticFile:
    return StaticFile(body, gzip.compress(body, mtime=0), content_type, hashlib.sha256(body).hexdigest()[:32])


def _takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding header takes gzip; "*" stands for what it does not name (RFC 9110, section 12.5.3)."""
    parts = [part.partition(";") for part in accepted.lower().split(",")]
    weights = {name.strip(): weight for name, _, weight in parts}
    weight = weights.get("gzip", weights.get("*"))
    return weight is not None and not _NONE.fullmatch(weight)


def _respond(request: web.Request, file: StaticFile | None, headers: Mapping[str, str]) -> web.StreamResponse:
    if file is None:
        raise web.HTTPNotFound
    is_packed = _takes_gzip(request.headers.get("Accept-Encoding", ""))
    etag = file.etag + "-gzip" if is_packed else file.etag  # they are not the same bytes
    if any(known.value in (etag, "*") for known in request.if_none_match or ()):
        response = web.Response(status=304, headers=headers)
    else:
        body = file.packed if is_packed else file.body
        response = web.Response(body=body, headers=headers, content_type=file.content_type, charset="utf-8")
        if is_packed:
            response.headers["Content-Encoding"] = "gzip"
    response.etag = ETag(etag)
    return response
