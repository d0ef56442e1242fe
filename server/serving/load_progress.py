"""Progress events for requests whose model is being loaded."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from engine.interface.types import PromptProgress, WaitStage
from server.serving.residency import Residency
from server.serving.served_model import ServedModel

INTERVAL_S = 0.5

TellProgress: TypeAlias = Callable[[PromptProgress, int], Awaitable[None]]  # with the index of the sequence


@asynccontextmanager
async def telling_of_load(model: ServedModel, residency: Residency, tell: TellProgress | None) -> AsyncIterator[None]:
    """Calls `tell` while the context lasts, whenever the stage of the load or the place in the queue of loads changes.

    With None it does nothing.
    """
    if tell is None:
        yield
        return
    task = asyncio.create_task(_tell(model, residency, tell))
    try:
        yield
    finally:
        # It is not waited for: it writes nothing more, and the answer's first events may follow in the same turn. A
        # client that has left cancels its handler by itself, so its error is of no use to anybody.
        task.cancel()
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


async def _tell(model: ServedModel, residency: Residency, tell: TellProgress) -> None:
    told = None
    while not model.is_in_memory:
        detail = model.loading_stage or _turn(residency.num_before(model))
        if detail != told:
            await tell(PromptProgress(WaitStage.LOADING, detail=detail), 0)
            told = detail
        await asyncio.sleep(INTERVAL_S)


def _turn(num_before: int) -> str:
    if not num_before:
        return "waiting for its turn"
    return f"waiting for its turn, behind {num_before} other model{'s' if num_before > 1 else ''}"
