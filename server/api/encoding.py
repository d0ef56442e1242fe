"""Where chunks are encoded: on the asyncio thread, or in a worker where that would hold up the other streams."""

from __future__ import annotations

from collections.abc import Sequence

from server.admission.workers import Workers
from server.api.route import StreamWriter
from server.generation.output_sequence import Delta

MAX_INLINE_LOGPROBS = 512  # of prompts' tokens, with their alternatives; a few milliseconds of work


async def encode(writer: StreamWriter, deltas: Sequence[Delta], workers: Workers) -> list[bytes]:
    """`writer.encode(deltas)`. The log probabilities of a long prompt take half a second: a worker encodes them."""
    if _num_prompt_logprobs(deltas) > MAX_INLINE_LOGPROBS:
        return await workers.run(writer.encode, deltas)
    return writer.encode(deltas)


def _num_prompt_logprobs(deltas: Sequence[Delta]) -> int:
    """All tokens of a prompt have as many alternatives as its last."""
    prompts = [delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None]
    return sum(len(tokens) * (1 + len(tokens[-1].top if tokens[-1] is not None else ())) for tokens in prompts)
