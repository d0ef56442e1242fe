"""Conversations: items that responses follow and add to, under an id that stays the same."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from aiohttp import web

from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED, read_asked
from server.http.responses.answering import HISTORY_SHARE, add_items
from server.routes.responses.history import History
from server.routes.responses.ids import new_conversation_id, new_item_id
from server.routes.responses.items import Item, shape_items
from server.routes.responses.records import Record, conversation_key, conversation_not_found
from server.storage.record_key import RecordKey
from server.transport.json_body import json_response, send_whole
from server.wire.errors import ApiError, shorten
from server.wire.responses.conversation_bodies import AddedItems, ConversationChange, NewConversation
from server.wire.responses.input_items import InputItem
from server.wire.responses.list_query import ListQuery


async def create(request: web.Request) -> web.Response:
    """POST /v1/conversations."""
    with ExitStack() as preparing:
        body = await read_asked(request, NewConversation.parse, preparing)
        conversation: Record = {
            "id": new_conversation_id(),
            "created_at": int(time.time()),
            "metadata": body.metadata or {},
            "items": await _shape(request, body.items or ()),
        }
        key = conversation_key(request[TENANT].owner, conversation["id"])
        await request.app[SERVED].store.put(key, conversation)
    return json_response(_told(conversation))


async def fetch(request: web.Request) -> web.Response:
    """GET /v1/conversations/{id}."""
    return json_response(_told(await _find(request)))


async def change(request: web.Request) -> web.Response:
    """POST /v1/conversations/{id}: other metadata."""
    with ExitStack() as preparing:
        body = await read_asked(request, ConversationChange.parse, preparing)

        def tell(old: Record | None) -> Record | None:
            return None if old is None else {**old, "metadata": body.metadata or {}}

        return json_response(_told(_found(request, await request.app[SERVED].store.change(_key(request), tell))))


async def delete(request: web.Request) -> web.Response:
    """DELETE /v1/conversations/{id}: with its items. Responses that are part of it stay."""
    if not await request.app[SERVED].store.delete(_key(request)):
        raise conversation_not_found(request.match_info["id"])
    return json_response({"id": request.match_info["id"], "object": "conversation.deleted", "deleted": True})


async def list_items(request: web.Request) -> web.Response:
    """GET /v1/conversations/{id}/items."""
    query = ListQuery.parse(request.query)
    conversation = await _find(request)
    return await _send(request, query.page(conversation["items"]))


async def add(request: web.Request) -> web.Response:
    """POST /v1/conversations/{id}/items: items at the end; the answer lists them."""
    with ExitStack() as preparing:
        body = await read_asked(request, AddedItems.parse, preparing)
        items = await _shape(request, body.items)
        served = request.app[SERVED]
        most = served.settings.max_body_bytes
        changed = await served.store.change(_key(request), lambda old: add_items(old, items, most))
        _found(request, changed)
        return await _send(request, ListQuery(limit=len(items), is_ascending=True).page(items))


async def fetch_item(request: web.Request) -> web.Response:
    """GET /v1/conversations/{id}/items/{item}."""
    conversation, item_id = await _find(request), request.match_info["item"]
    for item in conversation["items"]:
        if item["id"] == item_id:
            return await _send(request, item)
    raise _item_not_found(item_id)


async def delete_item(request: web.Request) -> web.Response:
    """DELETE /v1/conversations/{id}/items/{item}: the answer is the conversation."""
    item_id = request.match_info["item"]

    def remove(old: Record | None) -> Record | None:
        if old is None:
            return None
        left = [item for item in old["items"] if item["id"] != item_id]
        if len(left) == len(old["items"]):
            raise _item_not_found(item_id)
        return {**old, "items": left}

    return json_response(_told(_found(request, await request.app[SERVED].store.change(_key(request), remove))))


async def _shape(request: web.Request, items: Sequence[InputItem]) -> list[Item]:
    served, owner = request.app[SERVED], request[TENANT].owner
    history = History(served.store, owner, HISTORY_SHARE * served.settings.max_body_bytes)
    return await history.resolve(shape_items(items, lambda kind, at: new_item_id(kind)), "items")


async def _find(request: web.Request) -> Record:
    return _found(request, await request.app[SERVED].store.get(_key(request)))


def _found(request: web.Request, conversation: Record | None) -> Record:
    """
    Raises:
        ApiError: 404, the tenant has no such conversation.
    """
    if conversation is None:
        raise conversation_not_found(request.match_info["id"])
    return conversation


def _key(request: web.Request) -> RecordKey:
    return conversation_key(request[TENANT].owner, request.match_info["id"])


def _told(conversation: Mapping[str, Any]) -> dict[str, Any]:
    """A conversation as the API shows it, without its items."""
    told = {name: conversation[name] for name in ("id", "created_at", "metadata")}
    return {"object": "conversation", **told}


async def _send(request: web.Request, body: Mapping[str, Any]) -> web.Response:
    return await send_whole(request, json_response(body), request.app[SERVED].settings)


def _item_not_found(item_id: str) -> ApiError:
    return ApiError(f"Item with id {shorten(item_id)} not found.", status=404, param="item_id", code="item_not_found")
