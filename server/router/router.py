"""The router's state that its handlers share: replicas, limits, and which replica holds what."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import orjson
from aiohttp import web

from server.admission.admission_budget import AdmissionBudget
from server.admission.workers import Workers
from server.api.responses.items import response_of_item
from server.http.entry.guard import TENANT
from server.http.entry.served import read_body
from server.http.streams.router_headers import FRONT_KEY_HEADER
from server.protocol.errors import ApiError, unavailable
from server.protocol.json_limits import MAX_INLINE_BYTES, parse_json
from server.router.proxy_response import request_headers
from server.router.records.lru_dict import LruDict
from server.router.records.prefixes import prefix_blocks
from server.router.records.routed_adapters import RoutedAdapters
from server.router.records.routed_streams import RoutedStreams
from server.router.replica import ProxyRequest
from server.router.replicas import Replicas
from server.startup.settings import ServerSettings

MAX_OWNERS = 1 << 16
_ROUTING_FIELDS = ("stream", "resumable", "previous_response_id", "input_file_id")


class Router:
    """The replicas and what all handlers share. Limits and timeouts are those of `settings`."""

    def __init__(self, replicas: Replicas, settings: ServerSettings) -> None:
        self.replicas = replicas
        self.settings = settings
        self.admission_budget = AdmissionBudget(
            max_bytes=settings.max_preparing_bytes, max_requests=settings.max_preparing_requests
        )
        self.workers = Workers(rests=False)  # no engine computes in this process
        self.streams = RoutedStreams(
            grace=2 * settings.resume_grace,  # unread until it is stopped, and as long again until it is forgotten
            max_bytes=settings.resume_max_bytes,
            max_streams=settings.resume_max_streams,
        )
        self.adapters = RoutedAdapters()
        self.owners = LruDict[str, str](MAX_OWNERS)  # the id of a response, stream or request: its replica's name
        self.num_moved = 0  # streams that went on at another replica
        self.is_draining = False

    @property
    def num_open(self) -> int:
        return sum(replica.num_open for replica in self.replicas)

    def check_accepting(self) -> None:
        """Raises an `ApiError` with 503 while the router shuts down."""
        if self.is_draining:
            raise draining_error()

    async def read(self, request: web.Request, reading: ExitStack) -> ProxyRequest:
        """Reads a request with its whole body, whose bytes count in the admission budget until `reading` is closed. The
        request does not count among those that are being prepared, because its answer may take long.

        Raises ApiError: the body is refused, or a budget is exhausted.
        """
        if not request.body_exists:
            return without_body(request)
        share = reading.enter_context(self.admission_budget.receive())
        body = await read_body(request, lambda: share, self.settings, self.workers)
        tenant = request[TENANT].owner
        if len(body) > MAX_INLINE_BYTES:
            with self.admission_budget.receive() as parsing:
                parsing.complete()
                fields, blocks = await self.workers.run_large(_parse, body, tenant)
        else:
            fields, blocks = _parse(body, tenant)
        return ProxyRequest(request.method, request.path_qs, request_headers(request), body, fields, tuple(blocks))

    def stream_headers(self) -> dict[str, str]:
        """The headers by which a replica knows the router, next to the key of the client."""
        key = self.settings.front_key
        return {} if key is None else {FRONT_KEY_HEADER: key}

    def own_headers(self) -> dict[str, str]:
        """The headers by which a replica shows its health and its metrics to the router itself."""
        key = self.settings.front_key
        return {} if key is None else {"Authorization": f"Bearer {key}"}


ROUTER = web.AppKey("router", Router)


def without_body(request: web.Request) -> ProxyRequest:
    return ProxyRequest(request.method, request.path_qs, request_headers(request))


def draining_error() -> ApiError:
    return unavailable("the server is shutting down", "draining")


def _parse(body: bytes, tenant: str) -> tuple[dict[str, str | bool], list[int]]:
    """The routing fields of a body and the blocks of its prompt. A replica refuses what is none, or too many values."""
    try:
        fields = parse_json(body)
        return (routing_fields(fields), prefix_blocks(fields, tenant)) if isinstance(fields, dict) else ({}, [])
    except (ApiError, orjson.JSONEncodeError, UnicodeEncodeError, RecursionError):
        return {}, []


def routing_fields(fields: Mapping[str, Any]) -> dict[str, str | bool]:
    """The fields of a body that decide about its replica. The others are not held in memory, where they may be many
    times as large as the body while an answer takes long.
    """
    conversation = fields.get("conversation")
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    found = {name: fields.get(name) for name in _ROUTING_FIELDS}
    found |= {"conversation": conversation, "referenced_response": _referenced_response(fields)}
    return {name: value for name, value in found.items() if isinstance(value, str | bool)}


def _referenced_response(fields: Mapping[str, Any]) -> str | None:
    """The response with the first of the stored items that a body refers to."""
    for items in (fields.get("input"), fields.get("items")):
        for item in items if isinstance(items, list) else ():
            is_reference = isinstance(item, dict) and (item.get("type") or "item_reference") == "item_reference"
            if is_reference and "content" not in item and isinstance(item.get("id"), str):
                return response_of_item(item["id"])
    return None
