"""Conversations: items that responses follow and add to, under an id that stays the same."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from operator import itemgetter
from typing import Any, TypeVar

import orjson
from aiohttp import web

from server.api.conversations.conversation_requests import AddedItems, ConversationChange, NewConversation
from server.api.conversations.item_history import History
from server.api.conversations.query_params import ListQuery
from server.api.conversations.response_records import conversation_key, conversation_not_found
from server.api.conversations.stored_conversation import StoredConversation, id_of
from server.api.responses.input_items import InputItem
from server.api.responses.items import Item, new_conversation_id, new_item_id, shape_items
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED, read_request
from server.http.responses.response_runner import HISTORY_SHARE
from server.http.transport.json_body import json_response, send_whole
from server.protocol.errors import ApiError, shorten
from server.storage.record_table import RecordKey

T = TypeVar("T")


async def create(request: web.Request) -> web.Response:
    """POST /v1/conversations."""
    served = request.app[SERVED]
    with ExitStack() as preparing:
        body = await read_request(request, NewConversation.parse, preparing)
        items = await _shape(request, body.items or ())
        conversation_id = new_conversation_id()
        told = {"id": conversation_id, "created_at": int(time.time()), "metadata": body.metadata or {}}
        key = conversation_key(request[TENANT].owner, conversation_id)
        await served.store.put_made(key, lambda: StoredConversation.new(told, items).to_bytes())
    return json_response({"object": "conversation", **told})


async def fetch(request: web.Request) -> web.Response:
    """GET /v1/conversations/{id}."""
    return json_response(await _read(request, _told))


async def change(request: web.Request) -> web.Response:
    """POST /v1/conversations/{id}: replaces the metadata."""
    with ExitStack() as preparing:
        body = await read_request(request, ConversationChange.parse, preparing)
        return json_response(await _change(request, lambda stored: stored.with_metadata(body.metadata or {}), _told))


async def delete(request: web.Request) -> web.Response:
    """DELETE /v1/conversations/{id}: with its items. Responses that are part of it stay."""
    if not await request.app[SERVED].store.delete(_key(request)):
        raise conversation_not_found(request.match_info["id"])
    return json_response({"id": request.match_info["id"], "object": "conversation.deleted", "deleted": True})


async def list_items(request: web.Request) -> web.Response:
    """GET /v1/conversations/{id}/items."""
    query = ListQuery.parse(request.query)

    def page(conversation: StoredConversation) -> web.Response:
        listed = query.page(conversation.lines, id_of)
        return json_response({**listed, "data": [orjson.Fragment(line) for line in listed["data"]]})

    return await _send(request, await _read(request, page))


async def add(request: web.Request) -> web.Response:
    """POST /v1/conversations/{id}/items: items at the end; the answer lists them."""
    served = request.app[SERVED]
    with ExitStack() as preparing:
        body = await read_request(request, AddedItems.parse, preparing)
        items = await _shape(request, body.items)
        most = served.settings.max_body_bytes
        listed = ListQuery(limit=len(items), is_ascending=True).page(items, itemgetter("id"))
        response = await _change(
            request, lambda stored: stored.with_items(items, most), lambda _: json_response(listed)
        )
        return await _send(request, response)


async def fetch_item(request: web.Request) -> web.Response:
    """GET /v1/conversations/{id}/items/{item}."""
    item_id = request.match_info["item"]

    def find(conversation: StoredConversation) -> bytes:
        line = conversation.line_of(item_id)
        if line is None:
            raise _item_not_found(item_id)
        return line

    body = await _read(request, find)
    return await _send(request, web.Response(body=body, content_type="application/json"))


async def delete_item(request: web.Request) -> web.Response:
    """DELETE /v1/conversations/{id}/items/{item}: the answer is the conversation."""
    item_id = request.match_info["item"]

    def remove(conversation: StoredConversation) -> StoredConversation:
        if conversation.line_of(item_id) is None:
            raise _item_not_found(item_id)
        return conversation.without(item_id)

    return json_response(await _change(request, remove, _told))


async def _shape(request: web.Request, items: Sequence[InputItem]) -> list[Item]:
    served, owner = request.app[SERVED], request[TENANT].owner
    history = History(served.store, served.workers, owner, HISTORY_SHARE * served.settings.max_body_bytes)
    return await history.resolve(shape_items(items, lambda kind, at: new_item_id(kind)), "items")


async def _read(request: web.Request, pick: Callable[[StoredConversation], T]) -> T:
    """Loads the conversation and returns `pick(conversation)`, in the store's thread; raises ApiError (404)."""

    def work(content: bytes) -> T:
        return pick(StoredConversation.from_bytes(content))

    return _found(request, await request.app[SERVED].store.read(_key(request), work))


async def _change(
    request: web.Request, change: Callable[[StoredConversation], StoredConversation],
    tell: Callable[[StoredConversation], T],
) -> T:  # fmt: skip
    """Saves `change(conversation)` and returns `tell` of it, in the store's thread; raises ApiError (404)."""
    answers: list[T] = []

    def work(content: bytes) -> bytes:
        changed = change(StoredConversation.from_bytes(content))
        answers.append(tell(changed))
        return changed.to_bytes()

    _found(request, await request.app[SERVED].store.change(_key(request), work))
    return answers[0]


def _told(conversation: StoredConversation) -> dict[str, Any]:
    return conversation.api_object


def _found(request: web.Request, found: T | None) -> T:
    """Raises ApiError: 404, the tenant has no such conversation."""
    if found is None:
        raise conversation_not_found(request.match_info["id"])
    return found


def _key(request: web.Request) -> RecordKey:
    return conversation_key(request[TENANT].owner, request.match_info["id"])


async def _send(request: web.Request, response: web.Response) -> web.Response:
    return await send_whole(request, response, request.app[SERVED].settings)


def _item_not_found(item_id: str) -> ApiError:
    return ApiError(f"Item with id {shorten(item_id)} not found.", status=404, param="item_id", code="item_not_found")
