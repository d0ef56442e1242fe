"""What the handlers of a front share: the replicas, the limits, and where things were put."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from server.admission.admission_budget import AdmissionBudget
from server.admission.workers import Workers
from server.http.entry.guard import TENANT
from server.http.streams.router_headers import FRONT_KEY_HEADER
from server.http.transport.json_body import read_body
from server.protocol.errors import ApiError, unavailable
from server.protocol.json_values import MAX_INLINE_BYTES
from server.router.followed_stream import FollowedStreams
from server.router.prefixes import prefix_blocks
from server.router.proxy_response import request_headers
from server.router.replicas import Replicas
from server.startup.settings import ServerSettings

MAX_PLACES = 1 << 16
_DECIDING = ("stream", "resumable", "previous_response_id")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, ready to be sent to any replica, and again to another one."""

    method: str
    path: str  # with its query
    headers: Mapping[str, str]
    body: bytes | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)  # of the body, those by which a front decides
    blocks: tuple[int, ...] = ()  # of its prompt


class Places:
    """On which replica something was found by its id; what was not asked for the longest is forgotten first."""

    def __init__(self, most: int = MAX_PLACES) -> None:
        self._most = most
        self._names: OrderedDict[str, str] = OrderedDict()

    def get(self, thing: str) -> str | None:
        """The name of the replica that has had it."""
        return self._names.get(thing)

    def put(self, thing: str, replica: str) -> None:
        self._names[thing] = replica
        self._names.move_to_end(thing)
        if len(self._names) > self._most:
            self._names.popitem(last=False)


class Front:
    """One front, which takes the doors, limits and timeouts of `settings` and leaves the models to its replicas."""

    def __init__(self, replicas: Replicas, settings: ServerSettings) -> None:
        self.replicas = replicas
        self.settings = settings
        self.admission_budget = AdmissionBudget(
            max_bytes=settings.max_preparing_bytes, max_requests=settings.max_preparing_requests
        )
        self.workers = Workers(rests=False)  # no engine computes in this process
        self.streams = FollowedStreams(
            grace=2 * settings.resume_grace,  # unread until it is stopped, and as long again until it is forgotten
            max_bytes=settings.resume_max_bytes,
            max_streams=settings.resume_max_streams,
        )
        self.places = Places()
        self.num_moved = 0  # streams that went on at another replica
        self.is_draining = False

    @property
    def num_open(self) -> int:
        """Requests that are being answered."""
        return sum(replica.num_open for replica in self.replicas)

    def check_accepting(self) -> None:
        """
        Raises:
            ApiError: 503, the front is shutting down.
        """
        if self.is_draining:
            raise draining_error()

    async def read(self, request: web.Request, preparing: ExitStack) -> Asked:
        """The request with its whole body, whose bytes count until `preparing` is closed.

        The request itself does not count among those that are being prepared, because its answer may take long.

        Raises:
            ApiError: the body is refused, or a budget is spent.
        """
        body, fields, blocks = None, dict[str, Any](), list[int]()
        if request.body_exists:
            share = preparing.enter_context(self.admission_budget.receive())
            body = await read_body(request, share, self.settings)
            tenant = request[TENANT].owner
            if len(body) > MAX_INLINE_BYTES:
                with self.admission_budget.receive() as checking:
                    checking.complete()
                    fields, blocks = await self.workers.run_large(_parse, body, tenant)
            else:
                fields, blocks = _parse(body, tenant)
        return Asked(request.method, request.path_qs, request_headers(request), body, fields, tuple(blocks))

    def front_headers(self) -> dict[str, str]:
        """By which a replica knows that the front asks, beside the key of the client for whom it asks."""
        key = self.settings.front_key
        return {} if key is None else {FRONT_KEY_HEADER: key}

    def own_headers(self) -> dict[str, str]:
        """By which a replica lets the front itself see its figures."""
        key = self.settings.front_key
        return {} if key is None else {"Authorization": f"Bearer {key}"}


FRONT = web.AppKey("front", Front)


def draining_error() -> ApiError:
    """503: the front ends, and its replicas with it."""
    return unavailable("the server is shutting down", "draining")


def _parse(body: bytes, tenant: str) -> tuple[dict[str, Any], list[int]]:
    """The fields by which a front decides, and the blocks of the prompt. What is no JSON object is for a replica to
    refuse.
    """
    try:
        fields = orjson.loads(body)
        return (deciding_fields(fields), prefix_blocks(fields, tenant)) if isinstance(fields, dict) else ({}, [])
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, UnicodeEncodeError, RecursionError):
        return {}, []


def deciding_fields(fields: Mapping[str, Any]) -> dict[str, str | bool]:
    """What a front needs of a request. The others may be many times as large in memory as the body, and an answer
    takes long.
    """
    conversation = fields.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    found = {name: fields.get(name) for name in _DECIDING} | {"conversation": conversation}
    return {name: value for name, value in found.items() if isinstance(value, str | bool)}
