"""The client of the engine: what the asyncio side calls to submit requests and to read their tokens."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from engine.adapters.adapter_weights import AdapterWeights
from engine.adapters.gguf_adapter import open_adapter
from engine.embedding import embed, next_logprobs
from engine.engine import Engine
from engine.engine_plan import EnginePlan
from engine.engine_thread import JOIN_SECONDS, EngineThread
from engine.interface.config import EngineConfig, ModelInfo
from engine.interface.errors import ModelError, naming
from engine.interface.snapshot import EngineSnapshot
from engine.interface.types import (
    AdapterChoice,
    EngineStats,
    FinishReason,
    MachineMemory,
    ModelFootprint,
    Pooling,
    Poolings,
    Progress,
    PromptPicture,
    TraceEvent,
    picture_bytes,
)
from engine.loop import Abort
from engine.models import open_model
from engine.models.footprint import memory
from engine.request_limits import QueueLimits, check_prompt, check_text
from engine.request_timeouts import RequestTimeouts
from engine.schedule.request import Request
from engine.snapshot import take_snapshot
from engine.token_stream import Outbox, TokenStream
from sampling.host.grammar import TokenMatcher
from sampling.host.params import InvalidParameter, SamplingParams

# The server knows streams, adapters and plans by way of the client.
__all__ = ["AdapterWeights", "EngineClient", "EnginePlan", "Outbox", "TokenStream"]


class EngineClient:
    """Submits requests to the engine thread. All its methods are called from one asyncio loop."""

    def __init__(self, engine: Engine) -> None:
        self.model_info: ModelInfo = engine.model_info
        self._engine = engine
        self._seeds = random.Random(engine.config.seed)
        self._queue = QueueLimits(engine.config, engine.scheduler.counters)
        self._timeouts = RequestTimeouts(engine.config)
        self._thread = EngineThread(engine)
        self._engine_loop = self._thread.loop
        self._streams = self._thread.streams
        self.lifecycle = self._thread.lifecycle

    @classmethod
    def load(cls, model_path: Path, config: EngineConfig, progress: Progress) -> EngineClient:
        """Reads the weights and compiles every shape, in a worker thread; raises ModelError or ValueError."""
        return cls.load_planned(cls.plan(model_path, config), progress)

    @staticmethod
    def plan(model_path: Path, config: EngineConfig) -> EnginePlan:
        """Checks all that is known without the memory of the model, of which nothing is read yet; raises as `load`."""
        if config.host_index:
            raise ValueError(f"host_index is {config.host_index}; only host 0 serves, and the others follow it")
        return EnginePlan.of(model_path, config)

    @classmethod
    def load_planned(cls, plan: EnginePlan, progress: Progress) -> EngineClient:
        """As `load`, of a model that was checked."""
        return cls(Engine.load_planned(plan, progress))

    @staticmethod
    def follow(
        model_path: Path, config: EngineConfig, progress: Progress, on_lost: Callable[[BaseException], None]
    ) -> None:
        """As `Engine.follow`, of an engine that is loaded here; may not return when the leader is lost."""
        Engine.load(model_path, config, progress).follow(on_lost)

    @staticmethod
    def refuse_unserved(model_path: Path) -> None:
        """Checks the architecture of a model, without its weights; raises ModelError where it is not served."""
        open_model.refuse_unserved(model_path)

    @staticmethod
    def rank_of_adapter(path: Path) -> int:
        """The rank of an adapter; raises ModelError where it is damaged or not served."""
        with naming(path):
            return open_adapter(path).largest_rank

    @staticmethod
    def footprint(model_path: Path, config: EngineConfig) -> ModelFootprint:
        """The memory that the model would take; only the headers of its files are read. Raises as `load`."""
        opened = open_model.open_model(
            model_path, language_model_only=config.language_model_only, mmproj=config.mmproj_path
        )
        return EnginePlan(opened.laid_out_for(config.max_model_len), config, None).footprint()

    @staticmethod
    def machine_memory() -> MachineMemory:
        """The memory of the machine at this moment."""
        return memory()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Starts the engine thread, whose events are delivered in `loop`.

        Raises EngineError: the hosts that computed the model with this one were released by an earlier client.
        """
        self._thread.start(loop)

    def submit(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        timeout: float | None = None,
        matcher: TokenMatcher | None = None,
        tenant: str = "",
        num_prompt_output_tokens: int = 0,
        pooling: Poolings | None = None,
        wants_progress: bool = False,
        second_start: int = 0,
        first_pooled: int = 0,
        pictures: Sequence[PromptPicture] = (),
        adapter: AdapterChoice | None = None,
        is_checked: bool = False,
    ) -> TokenStream:
        """Queues one request and returns at once.

        Args:
            request_id: must differ from those of all unfinished requests; chosen here if None.
            priority: requests of lower priority numbers run first, and equal ones in order of arrival.
            cache_salt: only requests with the same salt share prefixes and the embeddings of pictures.
            timeout: seconds until the request ends with TIMEOUT, at most the configured request_timeout.
            matcher: of the grammar that the output must follow, in its initial state; the engine owns it from now on.
            tenant: the owner of the request; tenants have fair shares of the engine.
            num_prompt_output_tokens: how many tokens at the end of the prompt count as output, so that an answer that
                was cut off continues seamlessly. A matcher must have accepted them.
            pooling: all tokens of the prompt but the last are pooled to an embedding, in `TokenEvent.pooled`; of an
                encoder, which does nothing else, all tokens. Of several poolings, none of which is NONE, the vectors
                stand one behind the other.
            second_start: where the second text of a pair begins in a prompt of an encoder; 0: it is no pair.
            first_pooled: the first token that is pooled; at least the last one is.
            wants_progress: until the first token comes, the stream has events with the progress of the request.
            pictures: those of the prompt, in their order, for a model that sees.
            adapter: one that was loaded and stays in its slot until the request has ended.
            is_checked: the prompt has passed `check_prompt` and the parameters `check_token_ids`, which matters where
                one prompt gets many answers.

        Raises:
            InvalidParameter: the two checks refuse the request, or the request_id is in use.
            QueueFull: the queue is at its limit.
            EngineError: the engine has failed, was shut down or was not started.
        """
        asyncio_loop, num_tokens = self._thread.asyncio_loop, len(prompt_token_ids)
        is_encoder = self.model_info.is_encoder
        if is_encoder:
            if pooling is None:
                raise InvalidParameter("model", "the model is an encoder, which generates no text")
            check_text(self.model_info, prompt_token_ids)
        elif not is_checked:
            params.check_token_ids(self.model_info.vocab_size)
            self.check_prompt(prompt_token_ids, params.max_tokens, num_prompt_output_tokens=num_prompt_output_tokens)
        poolings = () if pooling is None else pooling if isinstance(pooling, tuple) else (pooling,)
        if Pooling.MAX in poolings and not self.model_info.takes_maxima:
            raise InvalidParameter("pooling", "pooling is max, which has no meaning before this model's dense layer")
        self._check_pictures(pictures)
        num_picture_bytes = picture_bytes(pictures)
        self._queue.check(num_tokens, num_picture_bytes)
        arrival = self._queue.num_submitted
        if request_id is None:
            request_id = f"request-{arrival}"
        if request_id in self._streams:
            raise InvalidParameter("request_id", f"request_id {request_id!r} is in use by a running request")
        deadline, queue_deadline = self._timeouts.deadlines(timeout)
        request = Request(
            request_id,
            list(prompt_token_ids),
            params,
            seed=self._seeds.getrandbits(64) if params.seed is None else params.seed,
            max_length=num_tokens + 1
            if is_encoder
            else min(num_tokens - num_prompt_output_tokens + params.max_tokens, self.model_info.max_model_len),
            priority=priority,
            arrival=arrival,
            cache_salt=cache_salt,
            tenant=tenant,
            deadline=deadline,
            queue_deadline=queue_deadline,
            matcher=matcher,
            num_prompt_output_tokens=num_prompt_output_tokens,
            poolings=poolings,
            wants_progress=wants_progress,
            is_whole=is_encoder,
            second_start=second_start,
            first_pooled=first_pooled,
            pictures=tuple(picture.with_salt(cache_salt) for picture in pictures),
            adapter=adapter,
            submitted_at=time.perf_counter(),
        )
        stream = request.mailbox = TokenStream(request, self._abort)
        self._streams[request_id] = stream
        self._queue.add(num_tokens, num_picture_bytes)
        self._engine_loop.post(request)
        self._timeouts.watch(asyncio_loop, stream, request)
        return stream

    def _check_pictures(self, pictures: Sequence[PromptPicture]) -> None:
        """Raises InvalidParameter: the encoder has no program for a picture of this size, or of this shape."""
        taken = self.model_info.pictures
        most = 0 if taken is None else taken.max_tokens
        shape = () if taken is None else taken.pixels_shape
        for picture in pictures:
            if picture.num_tokens > most:
                raise InvalidParameter("pictures", f"a picture has {picture.num_tokens} tokens; the limit is {most}")
            num_patches = picture.num_tokens * shape[0] // most if shape else 0
            if taken is not None and taken.is_tiled:
                num_patches = min(len(picture.pixels), shape[0])
            allowed = [(num_patches, *shape[1:])]
            if taken is not None and taken.num_frames:
                allowed.append((num_patches, *shape[2:]))
            if shape and picture.pixels.shape not in allowed:
                raise InvalidParameter("pictures", f"the encoder takes no pixels of shape {picture.pixels.shape}")

    async def embed(
        self, prompt_token_ids: Sequence[int], pooling: Poolings, *, priority: int = 0, tenant: str = "",
        second_start: int = 0, first_pooled: int = 0, cache_salt: str | None = None,
    ) -> np.ndarray:  # fmt: skip
        """The embedding of a prompt, float32[hidden], in the model's own length; raises as `submit`.

        With Pooling.NONE each token has its own, float32[num_tokens, hidden]; of several poolings the vectors stand one
        behind the other.
        Of a model with a head they are its scores, float32[num_labels]. It is a request like any other. In a decoder,
        two tokens of the context are left for the token that follows the prompt and for the one that is sampled.
        """
        return await embed(
            self.submit, prompt_token_ids, pooling, priority, tenant,
            is_encoder=self.model_info.is_encoder, second_start=second_start, first_pooled=first_pooled,
            cache_salt=cache_salt,
        )  # fmt: skip

    @property
    def takes_adapters(self) -> bool:
        """Whether the model was loaded with room for adapters."""
        return self._engine.adapters is not None

    def read_adapter(self, path: Path) -> AdapterWeights:
        """Reads an adapter, in any thread; raises ModelError if it does not fit the model."""
        if self._engine.adapters is None:
            raise ModelError(f"the model, {self.model_info.architecture}, takes no adapters")
        return self._engine.adapters.read(path)

    async def load_adapter(self, slot: int, weights: AdapterWeights) -> None:
        """Puts an adapter into a slot whose requests have all ended; raises EngineError where the engine has ended."""
        await self.lifecycle.load_adapter(slot, weights)

    def load_first_adapter(self, slot: int, weights: AdapterWeights) -> None:
        """As `load_adapter`, before the engine is started."""
        self._engine.load_adapter(slot, weights)

    async def next_logprobs(
        self, prompt_token_ids: Sequence[int], token_ids: Sequence[int], *, priority: int = 0, tenant: str = "",
        cache_salt: str | None = None,
    ) -> np.ndarray:  # fmt: skip
        """The logprobs with which each of some tokens follows a prompt, float32[num_token_ids]; raises as `submit`."""
        return await next_logprobs(self.submit, prompt_token_ids, token_ids, priority, tenant, cache_salt=cache_salt)

    def abort(self, request_id: str) -> bool:
        """Ends the request with this id; returns False if there is no unfinished one."""
        stream = self._streams.get(request_id)
        if stream is None:
            return False
        stream.abort()
        return True

    def check_prompt(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        max_tokens_parameter: str = "max_tokens",
        *,
        num_prompt_output_tokens: int = 0,
    ) -> None:
        """As `engine.request_limits.check_prompt`, for this model."""
        check_prompt(self.model_info, prompt_token_ids, max_tokens, max_tokens_parameter, num_prompt_output_tokens)

    def check_text(self, token_ids: Sequence[int]) -> None:
        """Checks that `embed` takes a text; raises InvalidParameter."""
        if self.model_info.is_encoder:
            check_text(self.model_info, token_ids)
        else:
            self.check_prompt([*token_ids, *token_ids[-1:]], 1)

    def stats(self) -> EngineStats:
        """Counters and gauges of this moment."""
        return replace(self._engine.stats(), num_waiting_tokens=self._queue.num_waiting_tokens)

    def snapshot(self) -> EngineSnapshot:
        """The state of the engine at this moment; takes time in proportion to the pages and the running requests."""
        return take_snapshot(self._engine.scheduler, self._engine_loop.timeline, self.stats())

    def trace(self, num_steps: int | None = None) -> list[TraceEvent]:
        """The times of device and host in the last `num_steps` steps, as events for Perfetto."""
        return self._engine_loop.timeline.export_trace(num_steps)

    @property
    def is_alive(self) -> bool:
        """Whether the engine thread makes progress, or runs a call of an operator, however long that takes."""
        return self._thread.is_alive

    @property
    def failure(self) -> asyncio.Future[None]:
        """A future that gets the exception that ended the engine; raises EngineError if the engine was not started."""
        return self._thread.failure

    def end_streams(self, error: str | None = None) -> None:
        """Ends every stream with an ABORT event, an ERROR event where there is an error, even if the thread hangs."""
        for stream in self._streams.values():
            stream.abort()
            stream.end(FinishReason.ABORT if error is None else FinishReason.ERROR, error)

    def shutdown(self, join_seconds: float = JOIN_SECONDS) -> None:
        """Ends all requests with an ABORT event, stops the thread and joins it within `join_seconds`; idempotent."""
        self._thread.shutdown(join_seconds)

    async def shutdown_in_background(self) -> None:
        """As `shutdown`, but the asyncio loop runs while the threads of the engine end."""
        await self._thread.shutdown_in_background()

    def _abort(self, request_id: str) -> None:
        self._engine_loop.post(Abort(request_id))
