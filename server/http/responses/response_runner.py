"""Runs one response from its accepted body to its end, whatever its events are written to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import orjson

from engine.interface.types import PromptProgress
from server.admission.admission_budget import Reservation
from server.admission.keyring import Tenant
from server.api.conversations.item_history import History
from server.api.conversations.response_records import (
    ConnectionRecords,
    Record,
    conversation_key,
    make_record,
    response_key,
)
from server.api.conversations.stored_conversation import StoredConversation
from server.api.encoding import write_deltas
from server.api.framing import MESSAGES
from server.api.responses.items import Item
from server.api.responses.response_call import ResponseCall
from server.api.responses.response_object import Response
from server.api.responses.response_writer import ResponseWriter
from server.api.route import AnswerContext
from server.generation.observer import ProgressObserver
from server.serving.served_models import Phase, ServedModels
from server.serving.submit import Submission
from server.startup.logs import failure_of, log
from server.storage.database import StoreError, TooLarge
from server.streams.stream import Stream

HISTORY_SHARE = 4  # what comes before a request may have so many times the bytes of the largest body
_KEPT = ("completed", "incomplete")  # responses that become part of their conversation


class ResponseRunner:
    """Runs the responses of one tenant.

    Args:
        local: responses that a socket remembers although they are not stored.
        as_messages: their events are messages of a WebSocket.
    """

    def __init__(
        self, served: ServedModels, tenant: Tenant, local: ConnectionRecords | None = None, *, as_messages: bool = False
    ) -> None:
        self._served = served
        self._tenant = tenant
        self._local = local
        self._as_messages = as_messages
        most = HISTORY_SHARE * served.settings.max_body_bytes
        self.history = History(served.store, served.workers, tenant.owner, most, local)

    async def look_back(self, turn: ResponseCall, share: Reservation) -> None:
        """Loads the items of the previous response or the conversation into the turn, as if the client had sent them.

        Args:
            share: what the request takes of the budgets while it is prepared.

        Raises:
            ApiError: what it names is not there, or the budget is spent.
            StoreError: it asks for what cannot be stored.
        """
        if turn.body.store or turn.body.conversation is not None:
            await self._served.store.check()  # who wants a response to be stored learns early that it will not be
        before = await self.history.before(turn.body)
        given = await self.history.resolve(turn.given)
        found = [*before, *([] if given == turn.given else given)]
        if found:
            share.add(await self._served.workers.run(lambda: sum(map(size_of, found))))
        turn.before, turn.given = before, given

    async def run(
        self,
        turn: ResponseCall,
        stream: Stream | None,
        *,
        request_id: str | None = None,
        writer: ResponseWriter | None = None,
        is_told: bool = False,
        on_accepted: Callable[[Callable[[], object]], object] | None = None,
    ) -> Response:
        """Generates the response and writes its events. The response is stored before its last event is sent.

        Args:
            stream: None where the response is answered whole.
            request_id: one more name by which the request may be cancelled.
            writer: of the response; made here if None.
            is_told: whether the client knows of the response already, so that an error is an event of its stream.
            on_accepted: called with what aborts the generation, once the request is in the engine's queue.

        Raises:
            ApiError, InvalidParameter, QueueFull, EngineError: the request was refused before an event was written.
        """
        served = self._served
        model = served.find(turn.body.model)
        if writer is None:
            writer = self.new_writer(turn, is_streamed=stream is not None)
        of_response = writer
        is_long = bool(turn.before) or len(turn.given) > 1
        request = await served.workers.run(turn.to_request) if is_long else turn.to_request()
        if turn.body.conversation is None:
            turn.before = []  # the prompt has it; a stored response names the one that it follows
        ids = (turn.id,) if request_id is None else (turn.id, request_id)

        async def tell(progress: PromptProgress, _index: int) -> None:
            nonlocal is_told
            is_told = True
            await _write(stream, of_response.tell_progress(progress))

        # The events of a response in the background are kept, and shall not depend on when its steps came.
        tells = stream is not None and not turn.body.background
        observers = (ProgressObserver(tell),) if tells else ()
        try:
            async with served.generate(model, Submission(request, self._tenant, ids, observers)) as generation:
                if on_accepted is not None:
                    on_accepted(generation.abort)
                context = AnswerContext(
                    MESSAGES, turn.id, model.name_of(turn.body.model), model.tokenizer, model.answer_format
                )
                writer.start(generation, context)
                events = writer.begin()
                is_told = True
                if stream is None:
                    async for deltas in generation:
                        writer.encode(deltas)
                else:
                    await stream.write(events)
                    await write_deltas(stream, generation, writer, served.workers)
                # Log probabilities of a whole answer take long to shape and encode.
                last = await served.workers.run(writer.end) if writer.is_slow else writer.end()
                # Within the context: a server that ends waits for it.
                await self._store_and_write(turn, writer, stream, last)
        except ConnectionError:
            raise
        except Exception as error:
            if not is_told:
                raise
            await self._store_and_write(turn, writer, stream, writer.fail(failure_of(error, "response_failed")))
        return writer.response

    def new_writer(self, turn: ResponseCall, *, is_streamed: bool = True) -> ResponseWriter:
        """The writer of the response to `turn`.

        Raises:
            ApiError: 404, there is no such model.
        """
        return ResponseWriter(
            turn,
            self._served.find(turn.body.model).name_of(turn.body.model),
            is_streamed=is_streamed,
            as_messages=self._as_messages,
            is_shut_down=lambda: self._served.phase is not Phase.READY,
        )

    async def cancel(self, turn: ResponseCall, writer: ResponseWriter, stream: Stream) -> None:
        """Ends a response whose generation has not begun."""
        await self._store_and_write(turn, writer, stream, writer.cancel())

    async def store_queued(self, turn: ResponseCall, response: Response) -> None:
        """Stores a response that is still to be generated.

        Raises:
            StoreError: it cannot be stored.
        """
        await self._served.store.put(response_key(self._tenant.owner, turn.id), _record_of(turn, response))

    async def delete_queued(self, turn: ResponseCall) -> None:
        """Deletes what `store_queued` has stored."""
        await self._served.store.delete(response_key(self._tenant.owner, turn.id))

    async def _store_and_write(
        self, turn: ResponseCall, writer: ResponseWriter, stream: Stream | None, last: list[bytes]
    ) -> None:
        """Stores the response as far as the request asks for it, and writes its last events.

        After a store error the client still gets the answer, which says what it is not part of.
        """
        response, changed = writer.response, dict[str, object]()
        if not await self._try_to_store(turn, self._store(turn, response)):
            changed["store"] = False
        if not await self._try_to_store(turn, self._add_to_conversation(turn, response)):
            changed["conversation"] = None
        if changed and writer.is_slow:
            last = await self._served.workers.run(lambda: writer.end_differently(last, **changed))
        elif changed:
            last = writer.end_differently(last, **changed)
        await _write(stream, last)

    async def _store(self, turn: ResponseCall, response: Response) -> None:
        record, key = _record_of(turn, response), response_key(self._tenant.owner, turn.id)
        if self._local is not None:
            self._local.put(turn.id, await self._served.workers.run(orjson.dumps, record))
        if turn.body.background:  # which may have been deleted meanwhile
            await self._served.store.change(key, lambda _: orjson.dumps(record))
        elif turn.body.is_stored:
            await self._served.store.put(key, record)

    async def _add_to_conversation(self, turn: ResponseCall, response: Response) -> None:
        conversation = turn.body.conversation
        if conversation is not None and not turn.is_warm_up and response["status"] in _KEPT:
            items, most = [*turn.given, *response["output"]], self._served.settings.max_body_bytes
            await self._served.store.change(
                conversation_key(self._tenant.owner, conversation),
                lambda content: StoredConversation.from_bytes(content).with_items(items, most).to_bytes(),
            )

    async def _try_to_store(self, turn: ResponseCall, storing: Awaitable[None]) -> bool:
        """Whether the store has taken what it was given."""
        try:
            await storing
        except StoreError as error:
            if isinstance(error, TooLarge) or self._served.store.may_log():
                log.warning("response_not_stored", response_id=turn.id, reason=str(error))
            return False
        return True


def _record_of(turn: ResponseCall, response: Response) -> Record:
    return make_record(response, turn.given, turn.before if turn.body.conversation is not None else None)


def size_of(item: Item) -> int:
    """Bytes of an item, as JSON."""
    return len(orjson.dumps(item))


async def _write(stream: Stream | None, events: list[bytes]) -> None:
    if stream is not None and events:
        await stream.write(events)
