"""Loads the items that precede a request: earlier responses, a conversation, and items referenced by id."""

from collections.abc import Sequence, Set
from typing import NamedTuple

import orjson

from server.admission.workers import Workers
from server.api.conversations.response_records import (
    ConnectionRecords,
    Record,
    conversation_key,
    conversation_not_found,
    items_of,
    previous_not_found,
    previous_of,
    response_key,
)
from server.api.conversations.stored_conversation import StoredConversation
from server.api.responses.items import Item, response_of_item
from server.api.responses.responses_request import ResponsesRequest
from server.protocol.errors import ApiError, shorten
from server.storage.database import TooLarge
from server.storage.record_store import RecordStore

MAX_REFERENCES = 256  # of one request


class _Named(NamedTuple):
    item: Item
    num_bytes: int  # as JSON


class History:
    """Loads the items that one owner has stored.

    `local` has records that a socket remembers in addition to the store; `max_bytes` bounds all items before a request.
    """

    def __init__(
        self, store: RecordStore, workers: Workers, owner: str, max_bytes: int, local: ConnectionRecords | None = None
    ) -> None:
        self._store = store
        self._workers = workers
        self._owner = owner
        self._max_bytes = max_bytes
        self._local = local

    async def before(self, body: ResponsesRequest) -> list[Item]:
        """The items that the request follows, the oldest first; raises ApiError if they are missing, or too many."""
        if body.conversation is not None:
            key = conversation_key(self._owner, body.conversation)
            items = await self._store.read(key, lambda content: StoredConversation.from_bytes(content).items)
            if items is None:
                raise conversation_not_found(body.conversation)
            return items
        if body.previous_response_id is None:
            return []
        records = await self._follow(body.previous_response_id)
        return [item for record in reversed(records) for item in items_of(record)]

    async def resolve(self, items: Sequence[Item], path: str = "input") -> list[Item]:
        """`items` with references replaced by the items that they name; raises ApiError for none or too many."""
        asked = [item["id"] for item in items if item["type"] == "item_reference"]
        if len(asked) > MAX_REFERENCES:
            raise ApiError(f"{path} has more than {MAX_REFERENCES} references to items, the limit", param=path)
        if not asked:
            return list(items)
        of_response: dict[str, set[str]] = {}
        for item_id in asked:
            of_response.setdefault(response_of_item(item_id), set()).add(item_id)
        named: dict[str, _Named] = {}
        num_bytes = 0
        for response_id, ids in of_response.items():
            for each in await self._pick(response_id, ids):
                named[each.item["id"]] = each
                num_bytes += each.num_bytes
            self._check_size(num_bytes, path)
        self._check_size(sum(named[item_id].num_bytes for item_id in asked if item_id in named), path)
        found = []
        for at, item in enumerate(items):
            if item["type"] != "item_reference":
                found.append(item)
                continue
            if item["id"] not in named:
                raise ApiError(
                    f"Item with id {shorten(item['id'])} not found.", param=f"{path}[{at}].id", code="item_not_found"
                )
            found.append(named[item["id"]].item)
        return found

    def _check_size(self, num_bytes: int, path: str) -> None:
        if num_bytes > self._max_bytes:
            raise ApiError(
                f"the items that {path} names have more than {self._max_bytes} bytes together",
                param=path,
                code="history_too_long",
            )

    async def _pick(self, response_id: str, ids: Set[str]) -> list[_Named]:
        def pick(content: bytes) -> list[_Named]:
            known = {item["id"]: item for item in reversed(items_of(orjson.loads(content)))}  # of equal ids the first
            found = [known[item_id] for item_id in ids if item_id in known]
            return [_Named(item, len(orjson.dumps(item))) for item in found]

        local = None if self._local is None else self._local.get_bytes(response_id)
        if local is not None:
            return await self._workers.run(pick, local)
        return await self._store.read(response_key(self._owner, response_id), pick) or []

    async def _follow(self, response_id: str) -> list[Record]:
        chain, following = await self._follow_local(response_id)
        if following is not None:
            try:
                chain += await self._store.follow(
                    response_key(self._owner, following), previous_of, most=self._max_bytes
                )
            except KeyError as error:
                raise previous_not_found(str(error.args[0])) from None
            except TooLarge as error:
                raise ApiError(str(error), param="previous_response_id", code="history_too_long") from error
        unfinished = next((r for r in chain if r["response"]["status"] in ("queued", "in_progress")), None)
        if unfinished is not None:
            raise ApiError(
                f"the response {shorten(unfinished['response']['id'])} has not ended yet; wait for it",
                param="previous_response_id",
                code="response_in_progress",
            )
        return chain

    async def _follow_local(self, response_id: str) -> tuple[list[Record], str | None]:
        """The part of the chain that the socket remembers, and the id at which it goes on in the store."""
        local = self._local
        if local is None or local.get_bytes(response_id) is None:
            return [], response_id

        def follow() -> tuple[list[Record], str | None]:
            chain: list[Record] = []
            following: str | None = response_id
            while following is not None and (content := local.get_bytes(following)) is not None:
                chain.append(orjson.loads(content))
                following = previous_of(chain[-1])
            return chain, following

        return await self._workers.run(follow)
