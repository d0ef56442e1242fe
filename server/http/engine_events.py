"""GET /engine/events: what an engine does, as server-sent events at a bounded rate.

Nothing is prepared while nobody listens. An event is one wake-up of the asyncio loop; the engine thread does nothing
for it.
"""

import asyncio
import time

import orjson
from aiohttp import web

from server.admission.admission_budget import FairLimit
from server.admission.keyring import Tenant, caller
from server.api.framing import SERVER_SENT_EVENTS
from server.generation.engine_view import NameOf, show
from server.http.entry.guard import GUARD, TENANT
from server.http.entry.served import SERVED
from server.http.transport.event_stream import EventStreamResponse
from server.protocol.errors import ApiError
from server.serving.served_model import ServedModel
from server.serving.served_models import Phase, ServedModels

PATH = "/engine/events"
INTERVAL_S = 0.2
MOST_SHARE = 0.005  # of one core's time that one reader's events may take; a large engine's come less often
MAX_READERS = 8  # at once, of all keys

READERS = web.AppKey("engine_readers", FairLimit)


def add_routes(app: web.Application) -> None:
    """GET /engine/events"""
    app[READERS] = FairLimit(MAX_READERS)
    app.router.add_get(PATH, engine_events, allow_head=False)  # the answer to HEAD has no end to be without


async def engine_events(request: web.Request) -> web.StreamResponse:
    """GET /engine/events: streams five snapshots a second of the first model, or of `?model=NAME`."""
    served, tenant, readers = request.app[SERVED], request[TENANT], request.app[READERS]
    _check_reader(served, tenant)
    model = served.find(request.query.get("model"))
    _ = model.engine  # a model that is not loaded is refused before the stream begins

    def refusal() -> ApiError:
        return ApiError(
            f"{readers.total} readers follow the engine already{readers.part_of(caller())}; "
            f"the limit is {readers.limit}",
            status=429,
            error_type="rate_limit_error",
            code="too_many_readers",
            headers={"Retry-After": "5"},
        )

    with readers.hold(refusal):
        return await _stream(request, served, model, tenant)


def _check_reader(served: ServedModels, tenant: Tenant) -> None:
    """Raises ApiError: 403, the server's figures have a port of their own, which clients cannot reach."""
    if served.settings.metrics_port is not None and not tenant.is_admin:
        raise ApiError(
            "with --metrics-port, what the engine does is shown with the administrator's key alone",
            status=403,
            error_type="permission_error",
            code="not_admin",
        )


async def _stream(request: web.Request, served: ServedModels, model: ServedModel, tenant: Tenant) -> web.StreamResponse:
    async with EventStreamResponse(request, served.settings) as stream:
        after_step = -1
        while served.phase is Phase.READY and request.app[GUARD].still_admits(tenant):
            began = time.perf_counter()
            event, after_step = _event(served, model, tenant, after_step)
            spent = time.perf_counter() - began
            await stream.write([event])
            await asyncio.sleep(max(INTERVAL_S, spent / MOST_SHARE))
        await stream.open()
        await stream.end()
    return stream.response


def _event(served: ServedModels, model: ServedModel, tenant: Tenant, after_step: int) -> tuple[bytes, int]:
    """Returns the next event, encoded, and the number of the last step in it."""
    snapshot = model.engine.snapshot()
    body = {
        "model": model.model_name,
        "state": model.state,
        **show(snapshot, _names_for(served, model, tenant), after_step=after_step),
    }
    last_step = snapshot.steps[-1].step if snapshot.steps else after_step
    return SERVER_SENT_EVENTS.frame(orjson.dumps(body)), last_step


def _names_for(served: ServedModels, model: ServedModel, tenant: Tenant) -> NameOf:
    """Returns a function that gives a request's id, or None where the tenant may not see it."""
    names = served.requests.names(model.generations)

    def name_of(stream_id: str) -> str | None:
        owner, request_id = names.get(stream_id, (None, None))
        return request_id if tenant.is_admin or owner == tenant.salt else None

    return name_of
