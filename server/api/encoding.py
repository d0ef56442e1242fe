"""Writes the deltas of a generation to a stream, encoded by the route's writer."""

from collections.abc import Sequence

from server.admission.workers import Workers
from server.api.route import StreamWriter
from server.generation.generation import Generation
from server.generation.output_sequence import Delta
from server.streams.stream import Stream

MAX_INLINE_LOGPROBS = 512  # of prompts' tokens, with their alternatives; a few milliseconds of work


async def write_deltas(stream: Stream, generation: Generation, writer: StreamWriter, workers: Workers) -> None:
    """Writes all deltas of `generation`, which the caller aborts if this raises; most are pushed without a task."""

    async def encode(deltas: Sequence[Delta]) -> list[bytes]:
        # The log probabilities of a long prompt take half a second to encode, for which other streams do not wait.
        if _num_prompt_logprobs(deltas) > MAX_INLINE_LOGPROBS:
            return await workers.run(writer.encode, deltas)
        return writer.encode(deltas)

    sink = stream.sink(writer.encode)
    async for deltas in generation:
        # What is large or slow comes with the first deltas, or is written here because the client is slow.
        await stream.write_deltas(deltas, encode)
        await generation.push(sink)


def _num_prompt_logprobs(deltas: Sequence[Delta]) -> int:
    """All tokens of a prompt have as many alternatives as its last."""
    prompts = [delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None]
    return sum(len(tokens) * (1 + len(tokens[-1].top if tokens[-1] is not None else ())) for tokens in prompts)
