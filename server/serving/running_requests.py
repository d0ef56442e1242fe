"""The registry of running requests by id, for cancellation."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from server.generation.generation import Generation

MAX_REMEMBERED = 4096  # ids of ended requests


class RunningRequest:
    """One request, from before its prompt is tokenised to its end."""

    def __init__(self) -> None:
        self.generation: Generation | None = None
        self.is_cancelled = False
        self.on_cancel: Callable[[], object] | None = None  # called where there is no generation yet

    def begin(self, generation: Generation) -> None:
        """Sets the generation; one that was cancelled before is aborted at once."""
        self.generation = generation
        if self.is_cancelled:
            generation.abort()

    def cancel(self) -> None:
        """Its answers end with ABORT, after the tokens that they already have. Idempotent."""
        self.is_cancelled = True
        if self.generation is not None:
            self.generation.abort()
        elif self.on_cancel is not None:
            self.on_cancel()


class RunningRequests:
    """All requests of a server. Each owner has its own ids, and finds only its own requests."""

    def __init__(self) -> None:
        self._running: dict[tuple[str | None, str], list[RunningRequest]] = {}
        # Whether those that ended last were cancelled, so that a repeated call gets the answer of the first.
        self._ended: OrderedDict[tuple[str | None, str], bool] = OrderedDict()
        self.num_requests = 0
        self.num_background = 0  # of these, those of batches

    @property
    def num_interactive(self) -> int:
        """Requests that a client waits for."""
        return self.num_requests - self.num_background

    @contextmanager
    def hold(self, owner: str | None, ids: Sequence[str], *, is_background: bool = False) -> Iterator[RunningRequest]:
        """Registers a request by each of its ids while the context lasts."""
        request = RunningRequest()
        keys = [(owner, request_id) for request_id in dict.fromkeys(ids)]
        for key in keys:
            self._running.setdefault(key, []).append(request)
        self.num_requests += 1
        self.num_background += is_background
        try:
            yield request
        finally:
            self.num_requests -= 1
            self.num_background -= is_background
            for key in keys:
                self._forget(key, request)

    def cancel(self, owner: str | None, request_id: str) -> bool | None:
        """Ends the owner's requests with this id; False where they had ended before, None where there are none."""
        key = (owner, request_id)
        running = self._running.get(key)
        if running is None:
            return self._ended.get(key)
        for request in running:
            request.cancel()
        return True

    def cancel_anybodys(self, request_id: str) -> int:
        """Ends the requests with this id, whoever made them; how many there were."""
        same_id = [requests for (_, known), requests in self._running.items() if known == request_id]
        found = [request for requests in same_id for request in requests]
        for request in found:
            request.cancel()
        return len(found)

    def names(self, generations: Collection[Generation]) -> dict[str, tuple[str | None, str]]:
        """Owner and id of the requests of one engine's generations, by the id that the engine knows each choice by."""
        names: dict[str, tuple[str | None, str]] = {}
        for key, requests in self._running.items():
            for request in requests:
                if request.generation in generations and request.generation is not None:
                    for stream_id in request.generation.stream_ids:
                        names.setdefault(stream_id, key)
        return names

    def _forget(self, key: tuple[str | None, str], request: RunningRequest) -> None:
        requests = self._running[key]
        requests.remove(request)
        if not requests:
            del self._running[key]
        self._ended[key] = request.is_cancelled
        self._ended.move_to_end(key)
        if len(self._ended) > MAX_REMEMBERED:
            self._ended.popitem(last=False)
