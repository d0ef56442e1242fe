"""The admin routes: the lifecycle of engines, aborts by id, a trace of the last steps.

Calls that concern one engine name its model, or else mean the first.
The guard requires an administrator's key, and answers 404 where there is none.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel

from engine.interface.errors import ModelError
from engine.interface.types import EngineBusy
from server.http.entry.guard import ADMIN_PREFIX
from server.http.entry.served import SERVED, read_body
from server.http.ollama import PULLS
from server.http.transport.json_body import json_response
from server.model_sources.available_models import AvailableModel, all_models
from server.model_sources.builtin_models import BUILTIN_MODELS
from server.model_sources.builtin_store import received_bytes
from server.model_sources.cache_folder import ModelStoreError
from server.model_sources.model_store import resolve_model
from server.protocol.admin_requests import AbortBody, ModelBody, ServeBody, SleepBody, UpdateWeightsBody
from server.protocol.errors import ApiError, invalid_value, shorten
from server.protocol.json_limits import parse_json
from server.serving.model_pulls import fetched_name
from server.serving.served_model import ServedModel
from server.serving.served_models import ServedModels
from server.startup.logs import log
from server.startup.settings import SettingsError

Body = TypeVar("Body", bound=BaseModel)
Change: TypeAlias = Callable[[ServedModels, ServedModel], Awaitable[None]]

MAX_TRACE_STEPS = 4096


def add_routes(app: web.Application) -> None:
    """Adds POST /admin/…, GET /admin/trace, and GET /admin/models."""

    def add(name: str, handler: Handler) -> None:
        app.router.add_post(ADMIN_PREFIX + name, handler)

    add("pause", _changing_state(lambda _, model: model.engine.lifecycle.pause()))
    add("resume", _changing_state(lambda _, model: model.engine.lifecycle.resume()))
    add("sleep", sleep)
    add("wake", _changing_state(lambda served, model: served.wake(model)))
    add("reset_prefix_cache", reset_prefix_cache)
    add("update_weights", update_weights)
    add("abort", abort)
    app.router.add_get(ADMIN_PREFIX + "trace", trace)
    app.router.add_get(ADMIN_PREFIX + "models", list_models)
    add("models", serve_model)


def _changing_state(change: Change) -> Handler:
    async def handle(request: web.Request) -> web.Response:
        model = _model_of(request, await read_admin_body(request, ModelBody))
        return await _change_state(model, change(request.app[SERVED], model))

    return handle


async def sleep(request: web.Request) -> web.Response:
    """Frees the memory of the pages, and with `drop_weights` the device's memory of the weights."""
    body = await read_admin_body(request, SleepBody)
    model = _model_of(request, body)
    return await _change_state(model, model.engine.lifecycle.sleep(drop_weights=body.drop_weights))


async def reset_prefix_cache(request: web.Request) -> web.Response:
    """Drops every cached prefix."""
    model = _model_of(request, await read_admin_body(request, ModelBody))
    if not await model.engine.lifecycle.reset_prefix_cache():
        raise _busy("requests hold pages; wait for them, or pause and abort them")
    log.info("admin", action="reset_prefix_cache")
    return json_response({"is_reset": True})


async def update_weights(request: web.Request) -> web.Response:
    """Replaces the weights by those of another file of the same architecture and sizes."""
    body = await read_admin_body(request, UpdateWeightsBody)
    if not body.path:
        raise invalid_value('path is ""; it must name a model on the server\'s machine', "path")
    model = _model_of(request, body)
    is_beside_others = request.app[SERVED].residency.is_beside_others(model)
    try:
        await model.engine.lifecycle.update_weights(
            Path(body.path), drain=body.drain, is_beside_others=is_beside_others
        )
    except EngineBusy as error:
        raise _busy(str(error)) from error
    except (ModelError, OSError) as error:
        raise invalid_value(f"the weights cannot be used: {error}", "path") from error
    log.info("admin", action="update_weights", path=shorten(body.path))
    return json_response({"path": body.path, "state": model.engine_state})


async def abort(request: web.Request) -> web.Response:
    """Ends the requests with an id, whichever key made them."""
    body = await read_admin_body(request, AbortBody)
    num_aborted = request.app[SERVED].requests.cancel_anybodys(body.request_id)
    if not num_aborted:
        raise ApiError(
            f"no request with the id {shorten(body.request_id)} is running",
            status=404,
            param="request_id",
            code="unknown_request",
        )
    log.info("admin", action="abort", aborted=body.request_id)
    return json_response({"request_id": body.request_id, "num_aborted": num_aborted})


async def trace(request: web.Request) -> web.Response:
    """The last steps of host and device, as a file for Perfetto; `?steps=N` for fewer, `&model=NAME`."""
    steps = request.query.get("steps")
    if steps is not None and not (steps.isascii() and steps.isdigit() and 1 <= int(steps[:9]) <= MAX_TRACE_STEPS):
        raise invalid_value(f"steps is {shorten(steps)}; it must be from 1 to {MAX_TRACE_STEPS}", "steps")
    engine = request.app[SERVED].find(request.query.get("model")).engine

    def encode() -> bytes:
        return orjson.dumps({"traceEvents": engine.trace(None if steps is None else int(steps))})

    body = await asyncio.to_thread(encode)
    headers = {"Content-Disposition": 'attachment; filename="eagre-trace.json"'}
    return web.Response(body=body, content_type="application/json", headers=headers)


async def list_models(request: web.Request) -> web.Response:
    """The models that this machine has from the Hub, and the built-in ones, which can be fetched."""
    served, pulls = request.app[SERVED], request.app[PULLS]
    values = {str(value) for model in served.all for value in (model.model_name, model.settings.model)}
    listed = await served.workers.run_long(lambda: [_listed(model) for model in all_models(()) if model.error is None])
    for entry in listed:
        pull = pulls.progress_of(entry["id"])
        entry |= {"is_served": entry["id"] in values, "pull": None if pull is None else pull._asdict()}
    return json_response({"object": "list", "data": listed})


def _listed(model: AvailableModel) -> dict[str, Any]:
    builtin = BUILTIN_MODELS.get(model.name)
    return {
        "id": model.name,
        "object": "model",
        "source": model.source,
        "is_here": model.path is not None,
        "size": None if builtin is None else builtin.size,
        "received": received_bytes(model.name),
        "license": model.license,
        "summary": model.summary,
        "memory_bytes": model.memory_bytes,
    }


async def serve_model(request: web.Request) -> web.Response:
    """Serves a fetched model beside the others, until the server ends; the first request for it loads it."""
    name = fetched_name((await read_admin_body(request, ServeBody)).model)
    served = request.app[SERVED]
    try:
        path = await served.workers.run_long(partial(resolve_model, name))
    except ModelStoreError as error:
        raise ApiError(f"{name} cannot be served: {error}", status=409, code="model_not_served") from error
    if path is None:
        raise ApiError(
            f"{name} is not here; POST /api/pull fetches it", status=404, param="model", code="model_not_found"
        )
    if name not in served.all_names:
        try:
            served.add(name)
        except SettingsError as error:
            raise ApiError(f"{name} cannot be served: {error}", status=409, code="model_not_served") from error
        log.info("admin", action="serve_model", model=name)
    return json_response({"model": name, "state": served.find(name).state})


def _model_of(request: web.Request, body: ModelBody) -> ServedModel:
    return request.app[SERVED].find(body.model)


async def _change_state(model: ServedModel, change: Awaitable[None]) -> web.Response:
    """Waits for a change in the engine thread and answers with the new state; raises ApiError (409) if not allowed."""
    try:
        with nullcontext() if model.idle_sleep is None else model.idle_sleep.operate():
            await change
    except EngineBusy as error:
        raise _busy(str(error)) from error
    log.info("admin", model=model.model_name, state=model.engine_state)
    return json_response({"state": model.engine_state})


async def read_admin_body(request: web.Request, kind: type[Body]) -> Body:
    """The body of a call of an operator, of which all fields may be missing where it has defaults for them."""
    return kind.model_validate(await _read_json(request) if request.can_read_body else {})


def _busy(message: str) -> ApiError:
    return ApiError(message, status=409, code="engine_busy")


async def _read_json(request: web.Request) -> object:
    served = request.app[SERVED]
    with served.admission_budget.receive() as share:
        return parse_json(await read_body(request, lambda: share, served.settings, served.workers))
