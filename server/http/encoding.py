"""Where chunks are encoded: on the asyncio thread, or in a worker where that would hold up the other streams."""

from __future__ import annotations

from collections.abc import Sequence

from server.answering.choice import Delta
from server.doors.workers import Workers
from server.routes.route import StreamWriter


async def encode(writer: StreamWriter, deltas: Sequence[Delta], workers: Workers) -> list[bytes]:
    """`writer.encode(deltas)`. The log probabilities of a long prompt take half a second: a worker encodes them."""
    if any(delta.prompt_logprobs is not None for delta in deltas):
        return await workers.run(writer.encode, deltas)
    return writer.encode(deltas)
