"""The engine of the offline API: generations for synchronous callers, without a server."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from engine.interface.types import EngineError, EngineStats, Poolings, QueueFull
from sampling.host.params import SamplingParams
from server.generation.generation import Generation
from server.generation.generation_request import GenerationRequest
from server.generation.output_sequence import OutputSequence
from server.generation.prompts import prepare_here, rules_behind, with_pictures
from server.media.picture_loader import PictureLoader
from server.offline.batch import Batch, BatchProgress, Job, Output
from server.offline.loop_thread import LoopStopped, LoopThread
from server.offline.sampling_params import over_defaults
from server.offline.text_stream import TextStream
from server.startup.model_loader import LoadedModel
from server.structured_output.grammar_compiler import GrammarCompiler

if TYPE_CHECKING:  # it brings JAX, which takes a second to import
    from engine.client import EngineClient

T = TypeVar("T")

_CLOSED = "this model has been closed; load it again"
_MAX_EMBEDDED_AT_ONCE = 256  # more than an engine has rows, and few enough to leave others room in the queue
_ROOM_POLL_SECONDS = 0.005  # the engine does not notify when its queue becomes shorter


class OfflineEngine:
    """Owns the engine of `loaded`, which has not been started, and a thread with the asyncio loop that it needs.

    Its methods may be called from several threads at once, with a running loop or without; they raise EngineError if
    the engine failed or was closed. It closes itself at the interpreter's exit.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self.text_model = loaded.text_model
        self._client = loaded.engine
        vocab_size = loaded.engine.model_info.vocab_size
        self._grammars = GrammarCompiler(loaded.text_model.tokenizer, vocab_size)
        self._pictures = PictureLoader((), None)
        self._room = asyncio.Lock()  # first come, first served
        self._thread = LoopThread("eagre-offline", at_end=self._end)
        self._thread.run(self._start())
        atexit.register(self.close)

    def check_open(self) -> None:
        """Raises EngineError if the engine failed or was closed."""
        if self._thread.is_stopped:
            raise EngineError(_CLOSED)
        failure = self._client.failure
        if failure.done() and not failure.cancelled():
            raise EngineError(f"the engine failed: {failure.exception()}; load the model again")

    def prepare(self, request: GenerationRequest, base: SamplingParams | None = None) -> Job:
        """Tokenizes and checks a request of one prompt, and compiles its grammar.

        Parameters of `base`, or else of the model's makers, hold where the request says nothing. Raises ApiError,
        InvalidParameter or ValueError.
        """
        if base is not None:
            base = over_defaults(base, self.text_model.sampling_defaults)
        request = self.with_pictures(request)
        (prompt,) = prepare_here(request, self.text_model, self._client, base)
        grammar_request = request.grammar
        grammar = None if grammar_request is None else grammar_request.to_grammar()
        if grammar_request is None or grammar is None:
            return Job(request, prompt)
        compiled = self._grammars.compile_here(grammar, grammar_request.parameter)
        return Job(request, prompt, rules_behind(compiled, prompt))

    def with_pictures(self, request: GenerationRequest) -> GenerationRequest:
        """A request with its pictures decoded, where the model sees them; raises ApiError."""
        return self.run(with_pictures(request, self.text_model, self._pictures))

    def generate(self, jobs: Sequence[Job], watch: Callable[[BatchProgress], None] | None = None) -> list[Output]:
        """The outputs of `jobs`, in their order; calls `watch` in this thread ten times a second and at the end."""
        batch = Batch(jobs, self._submit)
        if watch is None:
            return self.run(batch.run())

        def tick() -> None:
            if not batch.is_finished:
                watch(batch.progress)

        outputs = self.run(batch.run(), tick)
        watch(batch.progress)
        return outputs

    def stream(self, job: Job, owner: object = None) -> TextStream:
        """The answer to `job` as a stream; it has been queued on return. For `owner` see `TextStream`."""
        return self.run(self._stream(job, owner))

    def embed(self, prompts: Sequence[list[int]], pooling: Poolings) -> list[np.ndarray]:
        """The embeddings of prompts, float32[hidden] each, in their order; raises InvalidParameter before any runs."""
        for token_ids in prompts:
            self._client.check_text(token_ids)
        return self.run(self._embed(prompts, pooling))

    def stats(self) -> EngineStats:
        return self._client.stats()

    def operate(self, operation: Callable[[EngineClient], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine of the engine's client in its loop."""
        return self.run(operation(self._client))

    def run(self, coroutine: Coroutine[Any, Any, T], on_tick: Callable[[], None] | None = None) -> T:
        """`LoopThread.run` with the engine's own error."""
        try:
            return self._thread.run(coroutine, on_tick)
        except LoopStopped:
            raise EngineError(_CLOSED) from None

    def spawn_close(self, generation: Generation) -> None:
        """Aborts what still runs of `generation`; from any thread, a finalizer's too."""
        self._thread.spawn(generation.aclose())

    def close(self) -> None:
        """Ends every call in progress with an EngineError, stops the engine and waits for it. Idempotent."""
        self._thread.stop()
        self._thread.join()
        self._grammars.close()
        self._pictures.close()

    def close_soon(self) -> None:
        """`close` without the wait. A finalizer calls it, which may run in any thread, the engine's own included."""
        self._thread.stop()

    # ---------------------------------------------------------------- in the loop

    async def _start(self) -> None:
        self._client.start(asyncio.get_running_loop())
        self._client.failure.add_done_callback(_retrieve_exception)

    def _end(self) -> None:
        self._client.shutdown()
        atexit.unregister(self.close)

    async def _stream(self, job: Job, owner: object) -> TextStream:
        # The stream is made in the loop, so that one whose caller was interrupted is dropped and thereby aborted.
        return TextStream(await self._submit(job), self, owner)

    async def _embed(self, prompts: Sequence[list[int]], pooling: Poolings) -> list[np.ndarray]:
        at_once = asyncio.Semaphore(_MAX_EMBEDDED_AT_ONCE)

        async def one(token_ids: list[int]) -> np.ndarray:
            async with at_once:
                while True:
                    try:
                        return await self._client.embed(token_ids, pooling)
                    except QueueFull:
                        await asyncio.sleep(_ROOM_POLL_SECONDS)

        try:
            async with asyncio.TaskGroup() as group:
                readers = [group.create_task(one(token_ids)) for token_ids in prompts]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the first failure has cancelled all the others
        return [reader.result() for reader in readers]

    async def _submit(self, job: Job) -> Generation:
        """Queues the answers one by one, each as soon as there is room for it."""
        sequences: list[OutputSequence] = []
        try:
            async with self._room:
                while len(sequences) < len(job.prompt.params):
                    try:
                        sequences.append(self._submit_sequence(job, len(sequences)))
                    except QueueFull:
                        await asyncio.sleep(_ROOM_POLL_SECONDS)
        except BaseException:
            for sequence in sequences:
                sequence.abort()
            raise
        return Generation(sequences, [job.prompt], self.text_model.tokenizer)

    def _submit_sequence(self, job: Job, index: int) -> OutputSequence:
        request, params = job.request, job.prompt.params[index]
        stream = self._client.submit(
            job.prompt.token_ids,
            params,
            priority=request.priority or 0,
            cache_salt=request.cache_salt,
            timeout=request.timeout,
            matcher=None if job.grammar is None else job.grammar.matcher(),
            num_prompt_output_tokens=request.num_prompt_output_tokens,
            pictures=job.prompt.pictures,
            is_checked=True,
        )
        return OutputSequence(request, job.prompt, index, params, stream, self.text_model.tokenizer)


def _retrieve_exception(failure: asyncio.Future[None]) -> None:
    """Reads the exception, which every stream raises too; asyncio complains about one that is never read."""
    if not failure.cancelled():
        failure.exception()
