"""A resumable stream: its request runs in a task of its own, and its events are kept for whoever reads them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from engine.interface.types import FinishReason, PromptProgress, WaitStage
from sampling.host.params import MAX_SEED
from server.admission.keyring import Tenant
from server.api.encoding import encode
from server.api.framing import MESSAGES, Framing
from server.api.route import AnswerContext, Call, Route, StreamWriter
from server.generation.generation_request import GenerationRequest
from server.generation.observer import ProgressObserver
from server.generation.output_sequence import Delta
from server.http.streams.keeping_sink import KeepingSink
from server.protocol.errors import ApiError, unavailable
from server.serving.load_progress import telling_of_load
from server.serving.served_model import ServedModel
from server.serving.served_models import Phase, ServedModels
from server.serving.submit import Submission
from server.startup.logs import log
from server.streams.event_log import EventLog
from server.streams.held_answer import HeldAnswer
from server.streams.held_answers import ID_BYTES, HeldAnswers, unknown_stream
from server.streams.lanes import MAX_CHOICES, Lanes

STREAM_HEADER = "X-Eagre-Stream"
_BETWEEN_EVENTS = b"\n\n"  # of the HTML standard's event streams
NOT_HELD = "none"  # in the place of the id: the server has no room for another one


class Keeper(Protocol):
    """Who keeps the requests of streams beyond the process."""

    async def keep(self, answer: HeldAnswer, stream: HeldStream, prompts: Sequence[Sequence[int]]) -> None:
        """Keeps the request, with the token ids of its prompts, until its answer is forgotten."""


@dataclass
class HeldStream:
    """Makes the events of one resumable stream, as the work of a `HeldAnswer`."""

    served: ServedModels
    keeper: Keeper
    model: ServedModel
    route: Route
    call: Call[Any]
    framing: Framing
    request_id: str  # in the answer's id
    tenant: Tenant
    request_ids: Sequence[str]  # names by which the tenant may cancel it
    client_id: str = ""  # in the messages of a socket
    is_recomputed: bool = False  # for readers of an earlier process, or of another server
    is_kept: bool = False  # a later process can compute it again
    is_fronted: bool = False  # another server can, because a front asks it to
    check: Callable[[], None] | None = None  # raises where this process would compute something else
    lanes: Lanes | None = None

    async def __call__(self, answer: HeldAnswer) -> None:
        lanes, request = self.open(answer.log), self.call.request
        ids = (*self.request_ids, answer.id)

        async def tell(progress: PromptProgress, index: int) -> None:
            if progress.stage is not WaitStage.LOADING:  # of which each reader is told apart
                lanes.pass_on(self._encode_progress(progress, index))

        if self.is_recomputed:
            await self.served.first_load(self.model)  # its readers came to a server that had said yes to them before
        submission = Submission(request, self.tenant, ids, (ProgressObserver(tell),), was_accepted=self.is_recomputed)
        async with self.served.generate(self.model, submission) as generation:
            if self.check is not None:
                self.check()
            model = self.model
            context = AnswerContext(
                self.framing, self.request_id, model.model_name, model.tokenizer, model.answer_format, answer.id
            )
            writer = self.call.make_writer(generation, context)
            for event in self._split(writer.begin()):
                lanes.append(event, None)
            await self.keeper.keep(answer, self, [prompt.token_ids for prompt in generation.prompts])
            answer.begin(generation.abort)
            sink = KeepingSink(lambda deltas: self._keep(deltas, writer, lanes), answer.log)
            async for deltas in generation:
                for delta in deltas:
                    self._refuse_to_end(delta)
                    self._append(lanes, await encode(writer, [delta], self.served.workers), delta.index)
                    answer.log.flush()
                await generation.push(sink)
            *others, last = self._split(writer.end())
            for event in others:
                lanes.append(event, None)
            lanes.append(last, None, is_last=True)
            log.info("held_stream_done", duration=round(generation.duration, 6))

    def _keep(self, deltas: Sequence[Delta], writer: StreamWriter, lanes: Lanes) -> None:
        for delta in deltas:
            self._refuse_to_end(delta)
            self._append(lanes, writer.encode([delta]), delta.index)

    def _append(self, lanes: Lanes, chunks: Sequence[bytes], choice: int) -> None:
        for chunk in chunks:
            for event in self._split(chunk):
                lanes.append(event, choice)

    def tell_load(self, write: Callable[[bytes], Awaitable[None]]) -> AbstractAsyncContextManager[None]:
        """While the context lasts, and the model is being loaded, a reader is told of it, if the request asks for that.

        Args:
            write: writes to the reader.
        """

        async def tell(progress: PromptProgress, index: int) -> None:
            await write(self._encode_progress(progress, index))

        is_told = self.call.request.streaming.tells_progress and not self.model.is_open
        return telling_of_load(self.model, tell if is_told else None)

    def _encode_progress(self, progress: PromptProgress, index: int) -> bytes:
        return self.call.encode_progress(progress, index, self.framing, self.request_id, self.model.model_name)

    def open(self, events: EventLog) -> Lanes:
        """The lanes of the events, which are the same at every call."""
        if self.lanes is None:
            request = self.call.request
            num_choices = len(request.prompts) * request.num_sampled
            self.lanes = Lanes(events, num_choices, is_recomputed=self.is_recomputed)
        return self.lanes

    def _refuse_to_end(self, delta: Delta) -> None:
        """Where a server that shuts down cuts off a stream that can go on elsewhere or after its restart, the readers
        are told so.

        An end with "abort" would be the last event for ever.
        """
        can_go_on = self.is_kept or self.is_fronted
        if delta.finish_reason is FinishReason.ABORT and can_go_on and self.served.phase is Phase.DRAINING:
            raise unavailable("the server is shutting down; the stream goes on when it is back", "draining")

    def _split(self, chunk: bytes) -> list[bytes]:
        """Single events: the messages of a socket come one by one, server-sent events each end with an empty line."""
        if self.framing is MESSAGES or chunk.find(_BETWEEN_EVENTS) == len(chunk) - len(_BETWEEN_EVENTS):
            return [chunk]
        return [event + _BETWEEN_EVENTS for event in chunk.split(_BETWEEN_EVENTS) if event]


def start(stream: HeldStream, answer_id: str | None = None) -> HeldAnswer | None:
    """Begins to make the stream; None where the server has no room to hold another one, and the client can have a plain
    one.

    A request without a seed gets one that follows from the id, so that it gives the same answer if it has to be
    computed again, on whichever server.

    Args:
        answer_id: chosen here if None.

    Raises:
        ApiError: the request asks for more answers than a resumable stream may have; or there is no room for a stream
            of which the client has events already, which a plain one would repeat.
    """
    request = stream.call.request
    num_choices = len(request.prompts) * request.num_sampled
    if num_choices > MAX_CHOICES:
        raise ApiError(
            f"resumable is true and the stream has {num_choices} answers; a resumable one may have {MAX_CHOICES}",
            param="resumable",
            code="invalid_value",
        )
    answer_id = secrets.token_hex(ID_BYTES) if answer_id is None else answer_id
    stream.call.request = _with_seed(request, answer_id)
    try:
        return begin(stream, answer_id)
    except ApiError as error:
        if stream.is_recomputed:
            raise
        log.warning("stream_not_held", reason=error.message)
        return None


def begin(stream: HeldStream, answer_id: str | None = None) -> HeldAnswer:
    """Begins to make the stream, by an id of its own or by this one.

    Raises:
        ApiError: 429, the server has no room to hold another one.
    """
    answer = stream.served.held.start(stream.tenant.owner, stream, answer_id=answer_id)
    stream.open(answer.log)
    return answer


def find(held: HeldAnswers, owner: str | None, answer_id: str) -> tuple[HeldAnswer, HeldStream]:
    """
    Raises:
        ApiError: 404, this owner has no such stream.
    """
    answer = held.find(owner, answer_id)
    if not isinstance(answer.work, HeldStream):
        raise unknown_stream(answer_id)
    return answer, answer.work


def _with_seed(request: GenerationRequest, answer_id: str) -> GenerationRequest:
    if request.sampling.get("seed") is not None:
        return request
    drawn = int.from_bytes(hashlib.sha256(answer_id.encode()).digest()[:8], "big")
    return replace(request, sampling={**request.sampling, "seed": drawn % MAX_SEED})
