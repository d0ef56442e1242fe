"""The asyncio side's handle on the engine. (Interface first; the body follows.)"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

from engine.config import EngineConfig, ModelInfo
from engine.types import EngineStats, Progress, TokenEvent
from sampling.params import SamplingParams


class TokenStream(Protocol):
    """One request's tokens, as an async iterator of merged events; ends after the event with a finish_reason.

    A reader slower than the model gets merged events. `abort()` may be called at any time,
    any number of times; after it the stream still ends with one event (finish_reason ABORT,
    unless it had ended before).
    """

    request_id: str

    def __aiter__(self) -> AsyncIterator[TokenEvent]: ...
    async def __anext__(self) -> TokenEvent: ...
    def abort(self) -> None: ...


class EngineClient(Protocol):
    @classmethod
    def load(cls, model_path: Path, config: EngineConfig, progress: Progress) -> "EngineClient":
        """Blocking (call it in a worker thread): reads the weights, compiles every shape."""

    model_info: ModelInfo

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the engine thread; events arrive in `loop`."""

    def submit(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
    ) -> TokenStream:
        """Queues one request. Not a coroutine: returns at once.

        Raises:
            InvalidParameter: empty prompt, token id out of range, or prompt too long for the model
                (`param` is "prompt", the limit is in the message), or max_tokens that cannot fit.
            QueueFull: the queue is at its limit.
            EngineError: the engine has failed or is shut down.
        """

    def check_prompt(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        """The checks of `submit` alone, so that a route can refuse before it submits several."""

    def stats(self) -> EngineStats: ...

    @property
    def is_alive(self) -> bool:
        """Whether the engine thread turns: running, not failed, heartbeat younger than a few seconds."""

    @property
    def failure(self) -> "asyncio.Future[None]":
        """Never has a result; gets the exception that ended the engine, if one does."""

    def shutdown(self) -> None:
        """Aborts what runs, stops the thread and joins it. Idempotent."""
