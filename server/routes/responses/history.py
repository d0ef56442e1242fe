"""What came before a request: earlier responses, a conversation, and items that it names by their ids."""

from __future__ import annotations

from collections.abc import Sequence

from server.routes.responses.ids import response_of_item
from server.routes.responses.items import Item
from server.routes.responses.records import (
    LocalRecords,
    Record,
    conversation_key,
    conversation_not_found,
    items_of,
    previous_not_found,
    previous_of,
    response_key,
)
from server.storage.record_key import TooLarge
from server.storage.record_store import RecordStore
from server.wire.errors import ApiError, shorten
from server.wire.responses.responses_request import ResponsesRequest

MAX_REFERENCES = 256  # of one request


class History:
    """Looks up what one owner has stored.

    Args:
        local: what a socket remembers beside the store.
        max_bytes: of all that comes before a request, as JSON.
    """

    def __init__(self, store: RecordStore, owner: str, max_bytes: int, local: LocalRecords | None = None) -> None:
        self._store = store
        self._owner = owner
        self._max_bytes = max_bytes
        self._local = local

    async def before(self, body: ResponsesRequest) -> list[Item]:
        """The items that the request follows, the oldest first.

        Raises:
            ApiError: they are not there, or there are too many of them.
        """
        if body.conversation is not None:
            conversation = await self._store.get(conversation_key(self._owner, body.conversation))
            if conversation is None:
                raise conversation_not_found(body.conversation)
            items: list[Item] = conversation["items"]
            return items
        if body.previous_response_id is None:
            return []
        records = await self._follow(body.previous_response_id)
        return [item for record in reversed(records) for item in items_of(record)]

    async def resolve(self, items: Sequence[Item], path: str = "input") -> list[Item]:
        """`items` with what their references name in the place of these.

        Raises:
            ApiError: one names no item, or there are too many.
        """
        if sum(item["type"] == "item_reference" for item in items) > MAX_REFERENCES:
            raise ApiError(f"{path} has more than {MAX_REFERENCES} references to items, the limit", param=path)
        found = []
        records: dict[str, list[Item]] = {}  # the items of each response that was looked up
        for at, item in enumerate(items):
            if item["type"] != "item_reference":
                found.append(item)
                continue
            response_id = response_of_item(item["id"])
            if response_id not in records:
                record = await self._get(response_id)
                records[response_id] = [] if record is None else items_of(record)
            named = next((known for known in records[response_id] if known["id"] == item["id"]), None)
            if named is None:
                raise ApiError(
                    f"Item with id {shorten(item['id'])} not found.", param=f"{path}[{at}].id", code="item_not_found"
                )
            found.append(named)
        return found

    async def _get(self, response_id: str) -> Record | None:
        record = None if self._local is None else self._local.get(response_id)
        return record if record is not None else await self._store.get(response_key(self._owner, response_id))

    async def _follow(self, response_id: str) -> list[Record]:
        """The chain of responses that ends with this one, the last first."""
        chain: list[Record] = []
        following: str | None = response_id
        while following is not None and self._local is not None:
            record = self._local.get(following)
            if record is None:
                break
            chain.append(record)
            following = previous_of(record)
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
