"""One response from its accepted body to its end, however it is delivered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import orjson

from engine.interface.types import PromptProgress
from server.admission.admission_budget import Share
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
from server.api.framing import MESSAGES
from server.api.responses.events import Event
from server.api.responses.items import Item
from server.api.responses.response_call import ResponseCall
from server.api.responses.response_object import Response
from server.api.responses.response_writer import ResponseWriter
from server.api.route import AnswerContext
from server.generation.observer import ProgressObserver
from server.http.responses.audience import Audience
from server.protocol.errors import ApiError
from server.serving.served_models import Phase, ServedModels
from server.serving.submit import Submission
from server.startup.logs import failure_of, log
from server.storage.record_table import StoreError

HISTORY_SHARE = 4  # what comes before a request may have so many times the bytes of the largest body


class Answering:
    """Answers the calls of one tenant.

    Args:
        local: responses that are remembered although they are not stored.
    """

    def __init__(self, served: ServedModels, tenant: Tenant, local: ConnectionRecords | None = None) -> None:
        self._served = served
        self._tenant = tenant
        self._local = local
        most = HISTORY_SHARE * served.settings.max_body_bytes
        self.history = History(served.store, served.workers, tenant.owner, most, local)

    async def look_back(self, turn: ResponseCall, share: Share) -> None:
        """Gives the turn what came before it, which counts as if the client had sent it.

        Args:
            share: what the request takes of the budgets while it is prepared.

        Raises:
            ApiError: what it names is not there, or the budget is spent.
        """
        before = await self.history.before(turn.body)
        given = await self.history.resolve(turn.given)
        found = [*before, *([] if given == turn.given else given)]
        if found:
            share.add(await self._served.workers.run(lambda: sum(map(size_of, found))))
        turn.before, turn.given = before, given

    async def answer(
        self,
        turn: ResponseCall,
        audience: Audience | None,
        *,
        request_id: str | None = None,
        writer: ResponseWriter | None = None,
        is_told: bool = False,
        on_accepted: Callable[[Callable[[], object]], object] | None = None,
    ) -> Response:
        """Generates, and delivers events as they come. What is to be stored is stored before the last event leaves.

        Args:
            audience: takes the events; None: nobody listens.
            request_id: one more name by which the request may be cancelled.
            writer: of the response; made here if None.
            is_told: whether the client knows of the response already, so that an error is an event of its stream.
            on_accepted: called with what aborts the generation, once the request is in the engine's queue.

        Raises:
            ApiError, InvalidParameter, QueueFull, EngineError: the request was refused before an event was delivered.
        """
        served = self._served
        model = served.find(turn.body.model)
        if writer is None:
            writer = self.new_writer(turn, is_heard=audience is not None)
        is_long = bool(turn.before) or len(turn.given) > 1
        request = await served.workers.run(turn.to_request) if is_long else turn.to_request()
        if turn.body.conversation is None:
            turn.before = []  # the prompt has it; a stored response names the one that it follows
        ids = (turn.id,) if request_id is None else (turn.id, request_id)
        of_response = writer

        def end() -> list[Event]:
            return of_response.end(is_shut_down=self._is_shut_down)

        async def tell(progress: PromptProgress, _index: int) -> None:
            nonlocal is_told
            is_told = True
            await _deliver(audience, of_response.tell_progress(progress))

        # The events of a response in the background are kept, and shall not depend on when its steps came.
        tells = audience is not None and not turn.body.background
        observers = (ProgressObserver(tell),) if tells else ()
        try:
            async with served.generate(model, Submission(request, self._tenant, ids, observers)) as generation:
                if on_accepted is not None:
                    on_accepted(generation.abort)
                context = AnswerContext(MESSAGES, turn.id, model.model_name, model.tokenizer, model.answer_format)
                events = writer.begin(generation, context)
                is_told = True
                await _deliver(audience, events)
                sink = None if audience is None else audience.make_sink(writer.encode)
                async for deltas in generation:
                    await _deliver(audience, writer.encode(deltas))
                    if sink is not None:
                        await generation.push(sink)
                # Log probabilities of a whole answer take long to shape and encode.
                last = await served.workers.run(end) if writer.is_slow else end()
                await self._keep(turn, writer.response)
                await _deliver(audience, last)  # within the context: a server that ends waits for it
        except ConnectionError:
            raise
        except Exception as error:
            if not is_told:
                raise
            await self._fail(turn, writer, failure_of(error, "response_failed"), audience)
        return writer.response

    async def _fail(
        self, turn: ResponseCall, writer: ResponseWriter, error: ApiError, audience: Audience | None
    ) -> None:
        last = writer.fail(error)
        await self._keep(turn, writer.response)
        await _deliver(audience, last)

    def new_writer(self, turn: ResponseCall, *, is_heard: bool = True) -> ResponseWriter:
        """What writes the response to `turn`.

        Raises:
            ApiError: 404, there is no such model.
        """
        return ResponseWriter(turn, self._served.find(turn.body.model).model_name, is_heard=is_heard)

    async def forget(self, turn: ResponseCall) -> None:
        """Deletes what `keep_begun` has stored."""
        await self._served.store.delete(response_key(self._tenant.owner, turn.id))

    async def give_up(self, turn: ResponseCall, writer: ResponseWriter, audience: Audience | None) -> None:
        """Ends a response whose generation has not begun, because it was cancelled."""
        last = writer.cancel(is_shut_down=self._is_shut_down)
        await self._keep(turn, writer.response)
        await _deliver(audience, last)

    async def keep_begun(self, turn: ResponseCall, response: Response) -> None:
        """Stores a response that is still to be answered.

        Raises:
            StoreError: it cannot be stored.
        """
        await self._served.store.put(response_key(self._tenant.owner, turn.id), _record_of(turn, response))

    async def _keep(self, turn: ResponseCall, response: Response) -> None:
        """Stores the response as its request asks. An answer that cannot be stored is an answer all the same."""
        body, store = turn.body, self._served.store
        record, key = _record_of(turn, response), response_key(self._tenant.owner, turn.id)
        try:
            if self._local is not None:
                self._local.put(turn.id, await self._served.workers.run(orjson.dumps, record))
            if body.background:  # which may have been deleted meanwhile
                await store.change(key, lambda _: orjson.dumps(record))
            elif body.is_stored:
                await store.put(key, record)
            if body.conversation is not None and not turn.is_warm_up and response["status"] in _KEPT:
                items, most = [*turn.given, *response["output"]], self._served.settings.max_body_bytes
                await store.change(
                    conversation_key(self._tenant.owner, body.conversation),
                    lambda content: StoredConversation.from_bytes(content).with_items(items, most).to_bytes(),
                )
        except StoreError as error:
            log.warning("response_not_stored", response_id=turn.id, reason=str(error))

    @property
    def _is_shut_down(self) -> bool:
        return self._served.phase is not Phase.READY


def _record_of(turn: ResponseCall, response: Response) -> Record:
    return make_record(response, turn.given, turn.before if turn.body.conversation is not None else None)


_KEPT = ("completed", "incomplete")  # responses that become part of their conversation


def size_of(item: Item) -> int:
    """Bytes of an item, as JSON."""
    return len(orjson.dumps(item))


async def _deliver(audience: Audience | None, events: Sequence[Event]) -> None:
    if audience is not None and events:
        await audience.deliver(events)
