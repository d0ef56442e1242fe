"""The stored records of responses and conversations: their keys, their content, and the errors of missing ones."""

from collections import OrderedDict
from typing import Any

from server.api.responses.items import Item
from server.api.responses.response_object import Response
from server.protocol.errors import ApiError, shorten
from server.storage.record_table import RecordKey

Record = dict[str, Any]

MAX_LOCAL_RECORDS = 64  # responses that one socket remembers without storing them


def response_key(owner: str, response_id: str) -> RecordKey:
    return RecordKey("response", owner, response_id)


def conversation_key(owner: str, conversation_id: str) -> RecordKey:
    return RecordKey("conversation", owner, conversation_id)


def make_record(response: Response, given: list[Item], before: list[Item] | None) -> Record:
    """The record of a response to the items `given`, in a conversation that has the items `before`, if there is one."""
    return {"response": response, "input": given, **({} if before is None else {"before": before})}


def previous_of(record: Record) -> str | None:
    """The id of the response that this one follows."""
    previous: str | None = record["response"]["previous_response_id"]
    return previous


def items_of(record: Record) -> list[Item]:
    """The items that this response alone adds to a conversation."""
    return [*record.get("before", ()), *record["input"], *record["response"]["output"]]


def response_not_found(response_id: str) -> ApiError:
    """404, for an id that was never given, that was deleted, or that belongs to another key."""
    return ApiError(
        f"Response with id {shorten(response_id)} not found.", status=404, param="response_id", code="not_found"
    )


def previous_not_found(response_id: str) -> ApiError:
    """400, for a request that follows a response that does not exist (any more)."""
    return ApiError(
        f"Previous response with id {shorten(response_id)} not found.",
        param="previous_response_id",
        code="previous_response_not_found",
    )


def conversation_not_found(conversation_id: str) -> ApiError:
    return ApiError(
        f"Conversation with id {shorten(conversation_id)} not found.",
        status=404,
        param="conversation",
        code="not_found",
    )


class ConnectionRecords:
    """The last responses of one socket that are not stored. The oldest are dropped first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._records: OrderedDict[str, bytes] = OrderedDict()
        self._num_bytes = 0

    def put(self, response_id: str, content: bytes) -> None:
        """Remembers a response's record, as JSON, unless it alone exceeds the limit."""
        if len(content) > self._max_bytes:
            return
        self._records[response_id] = content
        self._num_bytes += len(content)
        while self._num_bytes > self._max_bytes or len(self._records) > MAX_LOCAL_RECORDS:
            _, oldest = self._records.popitem(last=False)
            self._num_bytes -= len(oldest)

    def forget(self, response_id: str) -> None:
        """Drops a response, if it is remembered."""
        self._num_bytes -= len(self._records.pop(response_id, b""))

    def get_bytes(self, response_id: str) -> bytes | None:
        """The record as JSON, to be parsed in a worker thread; None where there is none."""
        return self._records.get(response_id)
