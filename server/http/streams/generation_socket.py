"""The generations of one WebSocket, which the client tells apart by ids that it gives them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import ExitStack

from engine.interface.types import PromptProgress
from server.admission.keyring import Tenant
from server.api.encoding import write_deltas
from server.api.framing import MESSAGES
from server.api.route import (
    AnswerContext,
    Call,
    Cancel,
    Generate,
    MessageRoute,
    Refusal,
    Resume,
    StreamWriter,
    checked,
)
from server.generation.generation import Generation
from server.generation.observer import ProgressObserver
from server.http.entry.served import ignored_in
from server.http.streams import resumable_answer
from server.http.streams.request_store import StreamRequestStore
from server.http.streams.resumable_answer import ResumableAnswer
from server.http.transport.web_socket import SocketStream
from server.protocol.errors import ApiError, shorten
from server.protocol.json_limits import MAX_INLINE_BYTES
from server.serving.served_models import ServedModels
from server.serving.submit import Submission
from server.startup.logs import failure_of, log, note
from server.streams.stream import LoggedStream
from server.telemetry.trace_context import take_from

MAX_GENERATIONS = 256  # at once on one socket


class GenerationSocket:
    """One socket's generations. It is used as `async with`, which aborts them at its end.

    Each generation has a task that writes deltas as messages, one task at a time. While the client keeps up the tasks
    sleep, and deltas are pushed. While it is slow all tasks wait, and the engine's mailboxes merge what comes.
    """

    def __init__(
        self, route: MessageRoute, served: ServedModels, stream: SocketStream, tenant: Tenant, store: StreamRequestStore
    ) -> None:
        self._route = route
        self._served = served
        self._stream = stream
        self._tenant = tenant
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()  # each to the end of its last write
        self._running: set[str] = set()  # ids, from the generate message until the terminal message is due
        self._generations: dict[str, Generation] = {}  # those of them that are submitted, by id
        self._followed: dict[str, LoggedStream] = {}  # resumable streams that this socket reads, by id
        self._cancelled: set[str] = set()  # cancelled before they were submitted

    async def __aenter__(self) -> GenerationSocket:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for generation in self._generations.values():
            generation.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def receive(self, text: str) -> None:
        """Handles one text message; answers an invalid one with an error."""
        max_bytes, is_large = self._served.settings.max_body_bytes, len(text) > MAX_INLINE_BYTES
        if is_large:  # this socket's next message waits
            message = await self._served.workers.run_large(self._route.read, text, max_bytes)
        else:
            message = self._route.read(text, max_bytes)
        try:
            match message:
                case Generate() | Resume():
                    self._start(message, len(text))
                case Cancel():
                    self._cancel(message.id)
                case Refusal():  # not raised here, where its traceback and the message would keep each other alive
                    await self._stream.write([self._route.encode_error(message.id, message.error)])
        except ApiError as error:
            await self._stream.write([self._route.encode_error(message.id, error)])

    async def refuse_binary(self) -> None:
        """Answers a binary message with an error; only text messages are accepted."""
        error = ApiError("the frame is binary; it must be text", code="binary_frame")
        await self._stream.write([self._route.encode_error(None, error)])

    def _start(self, message: Generate | Resume, num_bytes: int) -> None:
        if message.id in self._running:
            raise ApiError(
                f"the id {shorten(message.id)} is already running on this socket; it goes on",
                param="id",
                code="duplicate_id",
            )
        if len(self._tasks) >= MAX_GENERATIONS:
            raise ApiError(
                f"{MAX_GENERATIONS} generations run on this socket, the limit; wait for one to end",
                status=429,
                error_type="rate_limit_error",
                code="too_many_generations",
            )
        if self._tenant.account is not None and isinstance(message, Generate):
            self._tenant.account.begin_request()
        preparing = ExitStack()
        preparing.enter_context(self._served.admission_budget.hold(num_bytes))
        self._running.add(message.id)
        task = asyncio.create_task(self._run(message, preparing, is_large=num_bytes > MAX_INLINE_BYTES))
        task.add_done_callback(lambda _: preparing.close())  # also where it is cancelled before its first step
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancel(self, client_id: str) -> None:
        if client_id not in self._running:
            raise ApiError(
                f"no generation with the id {shorten(client_id)} runs on this socket", param="id", code="unknown_id"
            )
        if client_id in self._generations:
            self._generations[client_id].abort()
        elif client_id in self._followed:
            self._followed[client_id].stop()
        else:
            self._cancelled.add(client_id)

    async def _run(self, message: Generate | Resume, preparing: ExitStack, *, is_large: bool) -> None:
        """One generation from its message to its terminal message."""
        try:
            if isinstance(message, Resume):
                terminal = await self._resume(message)
            else:
                terminal = await self._answer(message, preparing, is_large=is_large)
        except ConnectionError:
            return  # the reading side ends the socket
        except Exception as error:  # noqa: BLE001 - any failure is this id's terminal message
            terminal = self._encode_failure(message.id, failure_of(error, "stream_failed"))
        finally:
            # Free before the terminal message leaves: whoever reads it may use the id again.
            self._running.discard(message.id)
            self._cancelled.discard(message.id)
        try:
            await self._stream.write([terminal])
        except ConnectionError:
            return

    async def _answer(self, message: Generate, preparing: ExitStack, *, is_large: bool) -> bytes:
        """Streams to the end and returns the terminal message."""
        take_from(message.body)
        call = await self._served.workers.run_large(self._parse, message) if is_large else self._parse(message)
        stream_id = call.request_id or uuid.uuid4().hex
        self._served.ignored_parameters.tell(ignored_in(call, self._served))
        note(stream_id=stream_id)
        model = self._served.find(call.request.model)
        if call.request.streaming.is_resumable and self._route.readdress is not None:
            answer = ResumableAnswer(
                self._served, self._store.put, model, self._route, call, MESSAGES, stream_id, self._tenant,
                (stream_id,), message.id,
            )  # fmt: skip
            stream = resumable_answer.start(answer)
            if stream is not None:
                return await self._begin(message.id, stream, answer, preparing)
        return await self._generate(message.id, stream_id, call, preparing)

    async def _begin(
        self, client_id: str, stream: LoggedStream, answer: ResumableAnswer, preparing: ExitStack
    ) -> bytes:
        """Streams a resumable stream from its beginning, to the client that has asked for it."""
        try:
            with stream.reading():
                if client_id in self._cancelled:
                    stream.stop()
                return await self._follow(client_id, stream, answer, None, preparing.close)
        except asyncio.CancelledError:
            if stream.log.num_events == 0:
                self._served.streams.forget(stream)  # the client has never learnt its id
            raise

    async def _resume(self, message: Resume) -> bytes:
        """Streams the rest of a resumable stream and returns the terminal message; raises ApiError for none."""
        stream, answer = await self._store.find(self._tenant, message.stream)
        if answer.route is not self._route:
            raise ApiError(
                f"the stream was begun by {answer.route.path}; resume it with GET /v1/streams/{{id}}",
                status=409,
                param="stream",
                code="wrong_transport",
            )
        with stream.reading():
            return await self._follow(message.id, stream, answer, message.after)

    async def _wait_begun(self, client_id: str, stream: LoggedStream, answer: ResumableAnswer) -> None:
        """Waits until the request of a resumable stream is accepted, and tells the client if its model is loading."""

        async def write(message: bytes) -> None:
            await self._stream.write([self._readdress(message, answer, client_id, None)])

        async with answer.telling_of_load(write):
            await stream.begun()

    def _readdress(self, message: bytes, answer: ResumableAnswer, client_id: str, position: bytes | None) -> bytes:
        assert self._route.readdress is not None
        return self._route.readdress(message, answer.client_id, client_id, position)

    async def _follow(
        self, client_id: str, stream: LoggedStream, answer: ResumableAnswer, after: str | None,
        on_begun: Callable[[], object] | None = None,
    ) -> bytes:  # fmt: skip
        def frame(position: bytes | None, message: bytes) -> bytes:
            return self._readdress(message, answer, client_id, position)

        self._followed[client_id] = stream  # now, because the client may cancel it while it waits
        try:
            await self._wait_begun(client_id, stream, answer)
            if on_begun is not None:
                on_begun()
            async for entries in stream.log.read(stream.log.parse(after), self._stream.follower(frame)):
                messages = [frame(position, message) for position, message, _ in entries]
                if entries[-1].is_last:
                    await self._stream.write(messages[:-1])
                    return messages[-1]
                await self._stream.write(messages)
        finally:
            del self._followed[client_id]
        raise ApiError("nothing follows this place: the stream has ended", param="after", code="stream_ended")

    def _encode_failure(self, client_id: str, error: ApiError) -> bytes:
        """Encodes the terminal message of a failed generation; keeping the error would keep the caller's variables."""
        log.info("stream_refused", code=error.code, param=error.param)
        return self._route.encode_error(client_id, error)

    def _parse(self, message: Generate) -> Call[StreamWriter]:
        call = checked(lambda: self._route.parse(message))
        if call.request.streaming.is_resumable:
            call.body = message.body
        return call

    async def _generate(self, client_id: str, stream_id: str, call: Call[StreamWriter], preparing: ExitStack) -> bytes:
        """Streams to the end and returns the terminal message."""
        served = self._served
        model = served.find(call.request.model)
        name = model.name_of(call.request.model)

        async def tell(progress: PromptProgress, index: int) -> None:
            await self._stream.write([call.encode_progress(progress, index, MESSAGES, stream_id, name)])

        # The socket pings by itself while the model is brought into memory.
        submission = Submission(call.request, self._tenant, (stream_id,), (ProgressObserver(tell),))
        async with served.generate(model, submission) as generation:
            preparing.close()  # from here on the limits of the engine's queue hold
            self._generations[client_id] = generation
            if client_id in self._cancelled:
                generation.abort()
            try:
                context = AnswerContext(MESSAGES, stream_id, name, model.tokenizer, model.answer_format)
                writer = call.make_writer(generation, context)
                await self._stream.write(writer.begin())
                await write_deltas(self._stream, generation, writer, served.workers)
            finally:
                del self._generations[client_id]
            log.info("stream_done", duration=round(generation.duration, 6))
            (terminal,) = writer.end()
            return terminal
