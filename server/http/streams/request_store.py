"""Stores the requests of resumable streams, so that they can be computed again after a restart of the server."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from aiohttp import web

from server.admission.keyring import Tenant
from server.api.framing import MESSAGES, Framing
from server.api.route import BodyRoute, Call, Generate, Route, checked
from server.generation.prompt_sources import TokenPrompt
from server.http.streams.resumable_answer import ResumableAnswer, begin
from server.http.streams.resumable_answer import find as find_answer
from server.protocol.errors import ApiError
from server.serving.served_model import ServedModel
from server.serving.served_models import Phase, ServedModels
from server.startup.logs import log
from server.storage.database import StoreError
from server.storage.record_table import RecordKey
from server.streams.stream import LoggedStream
from server.streams.stream_registry import unknown_stream

KIND = "stream"
_POLL_S = 0.5  # between two looks at whether the server is ready
_MAX_POLLS = 7200


class _Stored(NamedTuple):
    """A record, parsed."""

    record: dict[str, Any]
    route: Route
    call: Call[Any]
    framing: Framing


class StreamRequestStore:
    """Stores the requests of one server's streams. Without `--store` it stores and finds nothing."""

    def __init__(self, served: ServedModels, routes: Sequence[Route]) -> None:
        """Args:
        routes: those that streams may have been begun by.
        """
        self._served = served
        self._routes = {route.path: route for route in routes}
        self._is_on_disk = served.settings.store is not None
        self._deletions: set[asyncio.Task[object]] = set()

    async def put(self, stream: LoggedStream, answer: ResumableAnswer, prompts: Sequence[Sequence[int]]) -> None:
        """Stores the request, with the token ids of its prompts, until its stream is forgotten."""
        if not self._is_on_disk:
            return
        key = _key(answer.tenant.owner, stream.id)
        # Token ids, because a chat template may write today's date.
        record = {
            "path": answer.route.path,
            "body": answer.call.body,
            "client_id": answer.client_id,
            "request_id": answer.request_id,
            "seed": answer.call.request.sampling["seed"],
            "prompts": prompts,
            "model": _fingerprint(answer.model, answer.call.request.model),
        }
        try:
            await self._served.store.put(key, record)
        except StoreError as error:
            if self._served.store.may_log():
                log.warning("stream_not_kept", reason=str(error))
            return
        answer.is_stored = True
        stream.on_forget = lambda: self._delete(key)
        if stream.is_forgotten:  # meanwhile
            self._delete(key)

    async def find(self, tenant: Tenant, stream_id: str) -> tuple[LoggedStream, ResumableAnswer]:
        """Finds the tenant's stream; a stream of an earlier process is recomputed from its stored request.

        Raises ApiError: 404, there is none, or it is another tenant's; or the request is refused now.
        """
        streams = self._served.streams
        if streams.get(tenant.owner, stream_id) is None and self._is_on_disk:
            try:
                record = await self._served.store.get(_key(tenant.owner, stream_id))
            except StoreError as error:
                if self._served.store.may_log():
                    log.warning("stream_not_read", reason=str(error))
                record = None
            if record is not None:
                # A stored body may be as large as any, and is checked as any.
                stored = await self._served.workers.run(self._parse, stream_id, record)
                if streams.get(tenant.owner, stream_id) is None:
                    self._recompute(tenant, stream_id, stored)
        return find_answer(streams, tenant.owner, stream_id)

    async def delete_unclaimed(self) -> None:
        """Deletes requests of earlier processes that no client has asked for within the grace."""
        if not self._is_on_disk:
            return
        try:
            left = await self._served.store.keys(KIND)
            for _ in range(_MAX_POLLS):
                if self._served.phase is not Phase.LOADING:
                    break
                await asyncio.sleep(_POLL_S)
            await asyncio.sleep(self._served.settings.resume_grace)
            for key in left:
                if self._served.streams.get(key.owner, key.id) is None:
                    await self._served.store.delete(key)
        except StoreError as error:
            log.warning("streams_not_forgotten", reason=str(error))

    def _parse(self, stream_id: str, record: dict[str, Any]) -> _Stored:
        """Raises ApiError: 404, the stream's route is not there any more; or the request is refused now."""
        route = self._routes.get(record["path"])
        if route is None:
            raise unknown_stream(stream_id)
        call: Call[Any]
        if isinstance(route, BodyRoute):
            call, framing = checked(lambda: route.parse(record["body"])), route.framing
        else:
            message = Generate(record["client_id"], record["body"])
            call, framing = checked(lambda: route.parse(message)), MESSAGES
        call.body = record["body"]
        call.request = replace(
            call.request,
            prompts=[TokenPrompt(token_ids) for token_ids in record["prompts"]],
            sampling={**call.request.sampling, "seed": record["seed"]},
        )
        return _Stored(record, route, call, framing)

    def _recompute(self, tenant: Tenant, stream_id: str, stored: _Stored) -> None:
        record, route, call, framing = stored
        model, request_id = self._find_model(call.request.model), record["request_id"]

        def check() -> None:
            if _fingerprint(model, call.request.model) != record["model"]:
                raise ApiError(
                    "the model is not the one that began this stream; it cannot be continued",
                    status=410,
                    param="id",
                    code="model_changed",
                )

        answer = ResumableAnswer(
            self._served, self.put, model, route, call, framing, request_id, tenant, (request_id,), record["client_id"],
            is_recomputed=True, check=check,
        )  # fmt: skip
        begin(answer, stream_id)
        log.info("stream_recomputed", model=model.model_name)

    def _find_model(self, name: str | None) -> ServedModel:
        """The model of this name. One that is still being loaded may yet get the name that its file gives it."""
        try:
            return self._served.find(name)
        except ApiError:
            if self._served.phase is not Phase.LOADING:
                raise
            return self._served.first

    def _delete(self, key: RecordKey) -> None:
        task = asyncio.ensure_future(self._try_to_delete(key))
        self._deletions.add(task)
        task.add_done_callback(self._deletions.discard)

    async def _try_to_delete(self, key: RecordKey) -> None:
        try:
            await self._served.store.delete(key)
        except StoreError as error:
            log.warning("stream_not_forgotten", reason=str(error))


REQUEST_STORE = web.AppKey("stream_requests", StreamRequestStore)


async def sweep(app: web.Application) -> AsyncIterator[None]:
    """Deletes the unclaimed requests of earlier processes, in a background task (a `cleanup_ctx`)."""
    task = asyncio.ensure_future(app[REQUEST_STORE].delete_unclaimed())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _key(owner: str, stream_id: str) -> RecordKey:
    return RecordKey(KIND, owner, stream_id)


def _fingerprint(model: ServedModel, name: str | None) -> dict[str, Any]:
    """Returns the facts that must be equal for a request to give the same tokens, as JSON values.

    They are those of the model and of its adapter, if the name that the client gave is that of one.
    """
    facts = {"name": model.model_name, **{key: str(value) for key, value in asdict(model.engine.model_info).items()}}
    if name is not None and model.is_of_adapter(name):
        facts["adapter"] = model.adapters.digest(name)
    return facts
