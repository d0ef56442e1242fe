"""The interface of whatever watches a generation: metrics, logs, spans, and writers of progress events."""

import logging
from collections.abc import Awaitable, Callable, Sequence

from engine.interface.types import PromptProgress
from server.generation.answers import GenerationStats
from server.generation.output_sequence import Delta, OutputSequence
from server.generation.prompts import PreparedPrompt

_log = logging.getLogger(__name__)


class GenerationObserver:
    """Its methods do nothing; a subclass overrides those that it needs.

    All are called in the asyncio thread. `submitted`, `progress` and `finished` run in the task that submits and reads
    the generation, so that they may write to the client or to the task's log context. `tokens` may be called by the
    engine's delivery instead, between two steps, so it must be fast and must not raise.
    """

    def submitted(self, prompts: Sequence[PreparedPrompt]) -> None:
        """All sequences of these prompts are in the engine's queue."""

    async def progress(self, progress: PromptProgress, index: int) -> None:
        """Sequence `index` still waits for its first token. Called only where the request asks for progress events."""

    def tokens(self, sequence: OutputSequence, token_ids: Sequence[int], deltas: Sequence[Delta], now: float) -> None:
        """`sequence` has taken in tokens, or has ended, or both.

        Args:
            token_ids: those that count; tokens behind a stop string do not.
            deltas: the text that has become certain with them.
            now: seconds of `time.perf_counter`. `sequence.last_token_at` is still the time of the tokens before.
        """

    def finished(self, stats: GenerationStats | None, error: BaseException | None) -> None:
        """Nothing more will be read. Called exactly once, also where the request was refused.

        `stats` are None where it was never queued; `error` has ended it early: a refusal, a failure, or a disconnect.
        """


class ProgressObserver(GenerationObserver):
    """Hands progress events to a function, which writes them to the client."""

    def __init__(self, write: Callable[[PromptProgress, int], Awaitable[None]]) -> None:
        self._write = write

    async def progress(self, progress: PromptProgress, index: int) -> None:
        await self._write(progress, index)


def tell_finished(
    observers: Sequence[GenerationObserver], stats: GenerationStats | None, error: BaseException | None
) -> None:
    """Calls `finished` of each. One that raises is logged: neither the others nor the answer depend on it."""
    for observer in observers:
        try:
            observer.finished(stats, error)
        except Exception:  # noqa: BLE001 - an answer must not fail by who watches it
            _log.exception("an observer of a generation has failed")
