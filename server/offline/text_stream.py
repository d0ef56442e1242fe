"""One prompt's answer as an iterator of deltas, for synchronous code."""

import weakref
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol, Self, TypeVar

from server.generation.answers import Usage
from server.generation.generation import Generation
from server.generation.output_sequence import Delta

T = TypeVar("T")


class RunsGenerations(Protocol):
    """The part of an `OfflineEngine` that a stream needs."""

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T: ...

    def spawn_close(self, generation: Generation) -> None: ...


class TextStream:
    """Yields `Delta`s until every answer has had its one with a finish_reason.

    A reader slower than the model gets longer deltas. `close`, leaving a `with` block, an exception in `next`, and
    dropping the iterator abort the request. The stream holds its `owner`, which closes the engine when it is dropped.
    """

    def __init__(self, generation: Generation, engine: RunsGenerations, owner: object) -> None:
        self._generation = generation
        self._engine = engine
        self._owner = owner
        self._ready: deque[Delta] = deque()
        self._is_closed = False
        # A loop that is left by `break` drops the iterator without closing it.
        self._finalizer = weakref.finalize(self, engine.spawn_close, generation)
        self._finalizer.atexit = False  # the engine's own end comes first

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        if not self._ready:
            if self._is_closed:
                raise StopIteration
            try:
                self._ready.extend(self._engine.run(self._read()))
            except BaseException:
                self.close()
                raise
            if not self._ready:
                self.close()
                raise StopIteration
        return self._ready.popleft()

    @property
    def usage(self) -> Usage:
        """The counts up to the last delta read."""
        return self._generation.usage

    @property
    def prompt_token_ids(self) -> list[int]:
        return self._generation.prompts[0].token_ids

    def close(self) -> None:
        """Aborts what still runs and drops what was not read. Idempotent."""
        self._is_closed = True
        self._ready.clear()
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    async def _read(self) -> list[Delta]:
        return await anext(self._generation, [])
