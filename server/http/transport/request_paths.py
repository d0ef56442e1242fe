"""The paths by which clients may call a route besides its own: under the server's prefix, and without `/v1`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from aiohttp import web
from yarl import URL

from server.startup.settings import Api

# Whether the client has left the version out, as llama.cpp's clients do.
IS_UNVERSIONED = web.RequestKey("is_unversioned", bool)

_VERSION = "/v1"
# First parts of paths that may stand without the version, by the API whose routes they are.
_OF_ANY = ("requests", "streams", "stream")
_OF_API = {
    Api.OPENAI: ("chat", "responses", "conversations", "files", "batches"),
    Api.ANTHROPIC: ("messages",),
}
# llama.cpp has routes of its own by these names; without its API they are OpenAI's too.
_SHARED_WITH_LLAMA_CPP = ("completions", "embeddings", "models")
_LLAMA_CPP_CHAT = "/chat/completions"


class RequestPaths:
    """Finds the path of the route that a request is for.

    Args:
        prefix: under which all routes are too; None: there is none.
        apis: the APIs that the server has.
    """

    def __init__(self, prefix: str | None, apis: Collection[str]) -> None:
        self._prefix = prefix
        self._has_llama_cpp = Api.LLAMA_CPP in apis
        parts = [*_OF_ANY, *(part for api, parts in _OF_API.items() if api in apis for part in parts)]
        if not self._has_llama_cpp:
            parts += _SHARED_WITH_LLAMA_CPP
        self._without_version = frozenset(parts)

    def own(self, method: str, path: str) -> str:
        """The path under which the route is registered; `path` itself where it has no other name."""
        path = self._without_prefix(path)
        first, _, rest = path[1:].partition("/")
        if self._has_llama_cpp and path == _LLAMA_CPP_CHAT:
            return path
        if first in self._without_version:
            return _VERSION + path
        # llama.cpp's lists and loads models; OpenAI's shows one.
        is_one_model = self._has_llama_cpp and first == "models" and bool(rest) and method in ("GET", "HEAD")
        return _VERSION + path if is_one_model else path

    def _without_prefix(self, path: str) -> str:
        if self._prefix is not None and path.startswith(self._prefix + "/"):
            return path[len(self._prefix) :]
        return path

    def renaming(self, make_request: Callable[..., Any]) -> Callable[..., Any]:
        """aiohttp's maker of requests, which gets the head of each with the route's own path."""

        def make(message: Any, *rest: Any) -> Any:
            url = message.url
            if not message.path.startswith("/"):  # a whole URL, for proxies
                return make_request(message, *rest)
            own = self.own(message.method, url.raw_path)
            if own == url.raw_path:
                return make_request(message, *rest)
            renamed = URL.build(path=own, query_string=url.raw_query_string, encoded=True)
            request = make_request(message._replace(url=renamed, path=str(renamed)), *rest)
            request[IS_UNVERSIONED] = own != self._without_prefix(url.raw_path)
            return request

        return make
