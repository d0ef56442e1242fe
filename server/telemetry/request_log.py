"""The request log: records of the last requests of a server, in a bounded number of bytes."""

from __future__ import annotations

from collections.abc import Sequence

from server.admission.workers import Workers
from server.generation.generation_request import GenerationRequest
from server.generation.prompts import MAX_SHORT_CHARS, work_of
from server.protocol.errors import ApiError
from server.telemetry.request_json import encode_request
from server.telemetry.request_record import RequestRecord


class RequestLog:
    """The newest requests, as many as fit. The oldest are evicted first, even those that still run."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._records: dict[int, RequestRecord] = {}  # by number, the oldest first
        self._newest: dict[str, RequestRecord] = {}  # by each of its ids
        self._num_requests = 0
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def begin(self, ids: Sequence[str], tenant: str, model: str | None) -> RequestRecord:
        """The record of a request that has come; it observes the request's generation."""
        record = RequestRecord(self._num_requests, ids, tenant, model, self._grow)
        self._num_requests += 1
        self._records[record.number] = record
        for request_id in record.ids:
            self._newest[request_id] = record
        self._make_room(record.num_bytes)
        return record

    async def describe(self, record: RequestRecord, request: GenerationRequest, workers: Workers) -> None:
        """Adds `request` as JSON to the record; a long one is encoded in a worker thread."""
        is_long = work_of(request) > MAX_SHORT_CHARS
        record.ask(await workers.run(encode_request, request) if is_long else encode_request(request))

    def refuse(self, request_id: str, tenant: str, route: str, error: ApiError) -> None:
        """Adds a record of a request that was refused before it was submitted."""
        known = self._newest.get(request_id)
        if known is not None and known.error is not None and known.error.message == error.message:
            return  # the same failure: its record tells more
        record = self.begin((request_id,), tenant, None)
        record.route = route
        record.end(error)

    def find(self, request_id: str, number: int | None = None) -> RequestRecord | None:
        """The newest request with this id, or the one of this number."""
        found = self._newest.get(request_id) if number is None else self._records.get(number)
        return found if found is not None and request_id in found.ids else None

    def newest(self, limit: int, before: int | None = None) -> list[RequestRecord]:
        """So many requests at most, the newest first, with numbers below `before`."""
        last = self._num_requests if before is None else min(before, self._num_requests)
        found = map(self._records.get, range(last - 1, max(last - 1 - limit, -1), -1))
        return [record for record in found if record is not None]

    def _grow(self, record: RequestRecord, num_bytes: int) -> None:
        if record.is_kept:
            record.num_bytes += num_bytes
            self._make_room(num_bytes)

    def _make_room(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        while self.num_bytes > self._max_bytes:
            oldest = next(iter(self._records.values()))
            self.num_bytes -= oldest.num_bytes
            del self._records[oldest.number]
            for request_id in oldest.ids:
                if self._newest.get(request_id) is oldest:
                    del self._newest[request_id]
            oldest.drop()
