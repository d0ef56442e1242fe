"""An engine that emits without computing: one token a step for each stream, several steps in one turn of the loop."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from engine.delivery import Delivery
from engine.interface.types import FinishReason
from engine.schedule.request import Request
from engine.schedule.request_event import RequestEvent
from engine.token_stream import TokenStream
from sampling.host.params import SamplingParams
from tests.fakes.engine_client import FakeEngineClient


class InstantEngine(FakeEngineClient):
    """Its streams, and the way of their events, are those of the real engine; it emits `ahead` steps in a turn."""

    def __init__(self, *, ahead: int, **options: Any) -> None:
        super().__init__(**options)
        self._ahead = ahead
        self._open: dict[str, Request] = {}

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams, **options: Any) -> TokenStream:  # type: ignore[override]
        """Queues a request, whose answer is its prompt over and over."""
        request_id = f"request-{next(self._ids)}"
        length = len(prompt_token_ids) + params.max_tokens
        request = Request(request_id, list(prompt_token_ids), params, 0, length)
        request.num_prompt_tokens = len(prompt_token_ids)
        request.submitted_at = request.admitted_at = time.perf_counter()
        request.mailbox = stream = TokenStream(request, self._end)
        self._open[request_id] = request
        return stream

    def _end(self, request_id: str) -> None:
        request = self._open.pop(request_id, None)
        if request is not None:
            request.mailbox.end(FinishReason.ABORT, None)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()

        def wake(function: Callable[[], None]) -> None:
            loop.call_soon(function)

        delivery = Delivery(wake, lambda request_id: self._open.pop(request_id, None))
        while True:
            requests = list(self._open.values())
            for _ in range(self._ahead):
                events = [_next_event(request) for request in requests if request.finish_reason is None]
                if events:
                    delivery.publish(events)
            await asyncio.sleep(0 if requests else 0.002)


def _next_event(request: Request) -> RequestEvent:
    tokens = request.token_ids
    token_id = tokens[len(tokens) % request.num_prompt_tokens]
    tokens.append(token_id)
    if len(tokens) == request.max_length:
        request.finish_reason = FinishReason.LENGTH
    return RequestEvent(request, (token_id,), request.finish_reason)
