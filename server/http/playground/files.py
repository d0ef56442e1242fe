"""The playground's files, read when they are first asked for, and kept in memory.

A page is served with one script and one style sheet (`bundle.py`), whose names have the digest of their content. The
modules that they were made of are served too, under the paths that they have in the package.
"""

import gzip
import hashlib
import html
import mimetypes
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from server.http.playground.bundle import bundle, hashed_name
from server.http.playground.lighten import lighten

PAGES = {"index.html": "app", "docs/index.html": "docs"}  # and the names of their scripts and style sheets
_OURS = (".html", ".css", ".svg", ".js", ".png", ".webmanifest")
_PACKED = (".mjs", ".bcmap", ".woff2")  # of packages only
_TYPES = {  # whatever the machine's table says; modules are refused under any other type
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".webmanifest": "application/manifest+json",
    ".bcmap": "application/octet-stream",
    ".woff2": "font/woff2",
}
_COMPRESSED = (".png", ".woff2", ".bcmap")
_PEERS = 'id="peers" content=""'  # of the page, where the servers stand that it may ask beside its own
_STATE = 'id="state" content=""'  # and where the state of its own stands
_MAX_STATE = 32_768  # characters; a page with many models asks for them by itself
_STYLES = re.compile(r'(?:<link rel="stylesheet" href="static/[^"]+">\s*)+')
_STYLE = re.compile(r'href="static/([^"]+)"')
_SCRIPT = re.compile(r'<script type="module" src="static/([^"]+)"></script>')
# What a page asks for before its script runs; without a key it would be refused, and the page take the refusal.
_KEYED = re.compile(r'<link rel="preload" href="v1/models"[^>]*>\s*')
_ASKED = re.compile(r'<link rel="preload" href="(?:readiness|v1/models)"[^>]*>\s*')
_NAMED = re.compile(r'\b(href|src)="static/([^"?]+)"')


class StaticFile(NamedTuple):
    body: bytes
    packed: bytes | None  # the body, compressed with gzip, where that makes it smaller
    content_type: str
    etag: str
    is_immutable: bool  # nothing else is ever served under its name


class Playground:
    """Every file that is served, by its path in the `static` package or its name; no other can be named.

    `peers` are origins of other servers that the page offers for comparison. Loading files blocks.
    """

    def __init__(self, peers: Sequence[str] = ()) -> None:
        self.paths = dict(_walk(files("static"), ""))
        self.loaded: dict[str, StaticFile] = {}
        self._pages = dict[tuple[str, bool, bool], StaticFile]()
        self._texts = dict[tuple[str, bool], str]()
        # The last state of each page, and the page with it.
        self._told = dict[tuple[str, bool], tuple[str, StaticFile]]()
        for path, name in PAGES.items():
            plain = self._text(path).replace(_PEERS, _PEERS.replace('""', f'"{html.escape(" ".join(peers))}"'))
            for text, is_plain in ((plain, True), (self._bundled(plain, name), False)):
                self._texts[path, is_plain] = text
                self._pages[path, is_plain, True] = _make(text.encode(), "text/html")
                self._pages[path, is_plain, False] = _make(_KEYED.sub("", text).encode(), "text/html")

    def page(self, path: str, *, is_plain: bool, is_open: bool, state: str = "") -> StaticFile:
        """A page of `PAGES`.

        Args:
            is_plain: it loads every module by itself.
            is_open: its server wants no keys, so that it may ask ahead.
            state: what it would ask for, as JSON: it comes with the page of an open server that is ready.
        """
        if not state or not is_open or len(state) > _MAX_STATE or _STATE not in self._texts[path, is_plain]:
            return self._pages[path, is_plain, is_open]
        told = self._told.get((path, is_plain))
        if told is None or told[0] != state:
            text = _ASKED.sub("", self._texts[path, is_plain])
            text = text.replace(_STATE, _STATE.replace('""', f'"{html.escape(state)}"'))
            told = self._told[path, is_plain] = (state, _make(text.encode(), "text/html"))
        return told[1]

    def load(self, path: str) -> StaticFile:
        """Reads a file of `paths`."""
        suffix = path[path.rindex(".") :]
        is_ours = not path.startswith("packages/")
        is_text = is_ours and suffix != ".png"
        body = self._text(path).encode() if is_text else self.paths[path].read_bytes()
        content_type = _TYPES.get(suffix) or mimetypes.types_map[suffix]
        # The folder of a package has its version.
        file = _make(body, content_type, packs=suffix not in _COMPRESSED, is_immutable=not is_ours)
        self.loaded[path] = file
        return file

    def _text(self, path: str) -> str:
        return lighten(self.paths[path].read_text("utf-8"), is_script=path.endswith(".js"))

    def _bundled(self, page: str, name: str) -> str:
        """The page with one style sheet and one script, and with the digests of what else it names."""
        styles = _STYLES.search(page)
        script = _SCRIPT.search(page)
        assert styles is not None, name
        assert script is not None, name
        sheet = "".join(self._text(path) + "\n" for path in _STYLE.findall(styles[0]))
        sheet = re.sub(r"\n{2,}", "\n", sheet)
        style_name = hashed_name(name, ".css", sheet.encode())
        self.loaded[style_name] = _make(sheet.encode(), "text/css", is_immutable=True)
        made = bundle(script[1], name, self._text)
        for script_name, text in made.scripts.items():
            self.loaded[script_name] = _make(text.encode(), "text/javascript", is_immutable=True)

        def with_digest(match: re.Match[str]) -> str:
            attribute, path = match.groups()
            return f'{attribute}="static/{path}?v={self.load(path).etag}"' if path in self.paths else match[0]

        head = f'<link rel="modulepreload" href="static/{made.entry}">\n'
        head += f'<link rel="stylesheet" href="static/{style_name}">\n'
        page = _STYLES.sub(lambda _: head, page)
        page = _SCRIPT.sub(f'<script type="module" src="static/{made.entry}"></script>', page)
        return _NAMED.sub(with_digest, page)


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    suffixes = _OURS + _PACKED if prefix.startswith("packages/") else _OURS
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(suffixes):
            yield prefix + entry.name, entry


def _make(body: bytes, content_type: str, *, packs: bool = True, is_immutable: bool = False) -> StaticFile:
    packed = gzip.compress(body, mtime=0) if packs else None
    return StaticFile(body, packed, content_type, hashlib.sha256(body).hexdigest()[:32], is_immutable)
