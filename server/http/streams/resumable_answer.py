"""Resumable answers: a generation runs in a task of its own and writes to a logged stream."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from aiohttp import web

from engine.interface.types import PromptProgress, WaitStage
from sampling.host.params import MAX_SEED
from server.admission.keyring import Tenant
from server.api.encoding import write_deltas
from server.api.framing import Framing
from server.api.route import AnswerContext, BodyRoute, Call, Route
from server.generation.generation_request import GenerationRequest
from server.generation.observer import ProgressObserver
from server.http.entry.access_log import REQUEST_ID
from server.http.streams.router_headers import STREAM_HEADER, read_routed_stream
from server.http.transport.event_stream import EventStreamResponse
from server.protocol.errors import ApiError, unavailable
from server.serving.load_progress import telling_of_load
from server.serving.served_model import ServedModel
from server.serving.served_models import Phase, ServedModels
from server.serving.submit import Submission
from server.startup.logs import log
from server.streams.stream import LoggedStream
from server.streams.stream_log import MAX_CHOICES
from server.streams.stream_registry import ID_BYTES, StreamRegistry, unknown_stream

_OF_THIS_SERVER = ("draining", "engine_failed")  # errors that the same request does not meet at another one

# Stores the request with the token ids of its prompts until its stream is forgotten.
Store: TypeAlias = Callable[[LoggedStream, "ResumableAnswer", Sequence[Sequence[int]]], Awaitable[None]]


@dataclass
class ResumableAnswer:
    """Produces the events of one resumable stream."""

    served: ServedModels
    store: Store
    model: ServedModel
    route: Route
    call: Call[Any]
    framing: Framing
    request_id: str  # in the answer's id
    tenant: Tenant
    request_ids: Sequence[str]  # names by which the tenant may cancel it
    client_id: str = ""  # in the messages of a socket
    is_recomputed: bool = False  # for readers of an earlier process, or of another server
    is_stored: bool = False  # a later process can compute it again
    is_routed: bool = False  # another server can, because a router asks it to
    check: Callable[[], None] | None = None  # raises where this process would compute something else

    async def __call__(self, stream: LoggedStream) -> None:
        async def tell(progress: PromptProgress, index: int) -> None:
            if progress.stage is not WaitStage.LOADING:  # of which each reader is told apart
                stream.log.append_transient(self._encode_progress(progress, index))
                await asyncio.sleep(0)  # its readers get it before the event that may follow at once

        if self.is_recomputed:
            await self.served.first_load(self.model)  # its readers came to a server that had accepted them before
        submission = Submission(
            self.call.request, self.tenant, (*self.request_ids, stream.id), (ProgressObserver(tell),),
            was_accepted=self.is_recomputed,
        )  # fmt: skip
        async with self.served.generate(self.model, submission) as generation:
            if self.check is not None:
                self.check()
            model = self.model
            context = AnswerContext(
                self.framing, self.request_id, self._name, model.tokenizer, model.answer_format, stream.id
            )
            writer = self.call.make_writer(generation, context)
            await stream.write(writer.begin())
            await self.store(stream, self, [prompt.token_ids for prompt in generation.prompts])
            stream.begin(generation.abort)
            stream.on_abort = self._check_abort
            await write_deltas(stream, generation, writer, self.served.workers)
            *others, last = writer.end()
            await stream.write(others)
            stream.log.append(last, is_last=True)
            log.info("held_stream_done", duration=round(generation.duration, 6))

    def check_transport(self) -> None:
        if not isinstance(self.route, BodyRoute):
            raise ApiError(
                f"the stream was begun on the WebSocket {self.route.path}; resume it there",
                status=409,
                param="id",
                code="wrong_transport",
            )

    def respond(self, request: web.Request, stream: LoggedStream) -> EventStreamResponse:
        route = self.route
        assert isinstance(route, BodyRoute)
        is_routed = read_routed_stream(request) is not None

        def encode_error(error: ApiError) -> bytes | None:
            # A router goes on elsewhere, and knows by a broken connection that it should.
            if is_routed and error.code in _OF_THIS_SERVER:
                return None
            return route.encode_error_event(error, request[REQUEST_ID])

        return EventStreamResponse(
            request, self.served.settings, framing=route.framing, headers={STREAM_HEADER: stream.id},
            encode_error=encode_error,
        )  # fmt: skip

    async def wait_begun(self, response: EventStreamResponse, stream: LoggedStream) -> None:
        if not self.model.is_open:
            await response.open()  # an EventSource gives up at an error, and waits for a stream that pings
        async with self.telling_of_load(response.open):
            await stream.begun()

    def telling_of_load(self, write: Callable[[bytes], Awaitable[None]]) -> AbstractAsyncContextManager[None]:
        """Writes progress events to a reader while the model loads, if the request wants progress."""

        async def tell(progress: PromptProgress, index: int) -> None:
            await write(self._encode_progress(progress, index))

        is_told = self.call.request.streaming.tells_progress and not self.model.is_in_memory
        return telling_of_load(self.model, self.served.residency, tell if is_told else None)

    def _encode_progress(self, progress: PromptProgress, index: int) -> bytes:
        return self.call.encode_progress(progress, index, self.framing, self.request_id, self._name)

    @property
    def _name(self) -> str:
        """Of the model, as the answer has it."""
        return self.model.name_of(self.call.request.model)

    def _check_abort(self) -> None:
        """Raises if a shutdown aborts a stream that may go on elsewhere: "abort" would be its last event for ever."""
        if (self.is_stored or self.is_routed) and self.served.phase is Phase.DRAINING:
            raise unavailable("the server is shutting down; the stream goes on when it is back", "draining")


def start(answer: ResumableAnswer, stream_id: str | None = None) -> LoggedStream | None:
    """Starts to generate the answer; returns None if there is no room for its log, so that a live stream can follow.

    A request without a seed gets one that follows from the id, so that it gives the same answer wherever it is
    computed.

    Raises ApiError: it has more choices than a resumable stream may have; or there is no room for a stream of which the
    client has events already, which a live one would repeat.
    """
    request = answer.call.request
    if num_choices(request) > MAX_CHOICES:
        raise ApiError(
            f"resumable is true and the stream has {num_choices(request)} answers; a resumable one may have "
            f"{MAX_CHOICES}",
            param="resumable",
            code="invalid_value",
        )
    stream_id = secrets.token_hex(ID_BYTES) if stream_id is None else stream_id
    answer.call.request = _with_seed(request, stream_id)
    try:
        return begin(answer, stream_id)
    except ApiError as error:
        if answer.is_recomputed:
            raise
        log.warning("stream_not_held", reason=error.message)
        return None


def begin(answer: ResumableAnswer, stream_id: str | None = None) -> LoggedStream:
    """Begins to produce the answer; raises ApiError (429) where there is no room for another logged stream."""
    return answer.served.streams.start(
        answer.tenant.owner, answer, stream_id=stream_id, num_choices=num_choices(answer.call.request),
        is_recomputed=answer.is_recomputed,
    )  # fmt: skip


def find(streams: StreamRegistry, owner: str | None, stream_id: str) -> tuple[LoggedStream, ResumableAnswer]:
    """Raises ApiError: 404, this owner has no such stream."""
    stream = streams.find(owner, stream_id)
    if not isinstance(stream.producer, ResumableAnswer):
        raise unknown_stream(stream_id)
    return stream, stream.producer


def num_choices(request: GenerationRequest) -> int:
    return len(request.prompts) * request.num_sampled


def _with_seed(request: GenerationRequest, stream_id: str) -> GenerationRequest:
    if request.sampling.get("seed") is not None:
        return request
    drawn = int.from_bytes(hashlib.sha256(stream_id.encode()).digest()[:8], "big")
    return replace(request, sampling={**request.sampling, "seed": drawn % MAX_SEED})
