"""The routes of Ollama's API that are no completions: models, versions, embeddings; and their registration."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from orjson import dumps

from server.api.ollama.answer_writer import NDJSON, nanoseconds
from server.api.ollama.generating import (
    CHAT,
    GENERATE,
    LoadRequest,
    OllamaCall,
    error_object,
    parse_chat,
    parse_generate,
)
from server.api.ollama.requests import EmbedOneRequest, EmbedRequest, NamedModel
from server.api.openai import token_requests
from server.api.route import BodyRoute, ErrorShape
from server.http import generating
from server.http.entry.access_log import IGNORED
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED, in_memory, read_request
from server.http.pooling.embedding import embed
from server.http.transport.event_stream import EventStreamResponse
from server.http.transport.json_body import json_response, send_whole
from server.protocol.errors import ApiError
from server.serving.model_pulls import ModelPulls, delete_model
from server.serving.served_model import ServedModel
from server.serving.tasks import task_of
from server.startup.model_task import Task

OLLAMA_VERSION = "0.13.0"  # the version of Ollama whose API this is; some clients refuse older ones
_PATHS = ("tags", "show", "ps", "version", "embed", "embeddings", "pull", "delete")
ERROR_SHAPES: Mapping[str, ErrorShape] = {f"/api/{name}": error_object for name in _PATHS}
GENERATING = frozenset({CHAT.path, GENERATE.path})  # whose handlers are here, because they also load models
LEAST_KEEP_ALIVE_S = 1.0  # shorter times are as long as this
_SUCCESS = {"status": "success"}
PULLS = web.AppKey("PULLS", ModelPulls)
_NEVER = "9999-12-31T23:59:59Z"


def add_routes(app: web.Application) -> None:
    app[PULLS] = ModelPulls()
    app.router.add_post(CHAT.path, _make_handler(CHAT, parse_chat))
    app.router.add_post(GENERATE.path, _make_handler(GENERATE, parse_generate))
    app.router.add_post("/api/embed", _embed)
    app.router.add_post("/api/embeddings", _embed_one)
    app.router.add_get("/api/tags", _list_models)
    app.router.add_get("/api/ps", _list_loaded)
    app.router.add_post("/api/show", _show)
    app.router.add_get("/api/version", _show_version)
    app.router.add_post("/api/pull", _pull)
    app.router.add_delete("/api/delete", _delete)


def _make_handler(route: BodyRoute, parse: Callable[[Any], OllamaCall | LoadRequest]) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        with ExitStack() as preparing:
            asked = await read_request(request, parse, preparing)
            if isinstance(asked, OllamaCall):
                response = await generating.answer(request, route, asked, preparing)
                _keep_alive(request, request.app[SERVED].find(asked.request.model), asked.keep_alive)
                return response
        served = request.app[SERVED]
        model = served.find(asked.model)
        if asked.unloads and request[TENANT].is_admin:
            await served.residency.unload(model)
            return json_response(asked.to_dict("unload"))
        if asked.unloads:
            request[IGNORED] = (*asked.ignored, "keep_alive")
        async with in_memory(served, model):
            if not asked.unloads:
                _keep_alive(request, model, asked.keep_alive)
            return json_response(asked.to_dict("load"))

    return handle


def _keep_alive(request: web.Request, model: ServedModel, seconds: float | None) -> None:
    """Sets for how long a model stays awake after its last request, where an administrator says so."""
    if seconds is not None and model.idle_sleep is not None and request[TENANT].is_admin:
        model.idle_sleep.set_seconds(None if seconds < 0 else max(seconds, LEAST_KEEP_ALIVE_S))


async def _embed(request: web.Request) -> web.StreamResponse:
    """POST /api/embed"""
    began = time.perf_counter()
    with ExitStack() as preparing:
        asked = await read_request(request, EmbedRequest.parse, preparing)
        found = await _embeddings(
            request, asked.model_name, asked.input, asked.dimensions, is_cut=asked.truncate is not False
        )
    body = {
        "model": asked.model_name,
        "embeddings": [each["embedding"] for each in found["data"]],
        "total_duration": nanoseconds(time.perf_counter() - began),
        "load_duration": 0,
        "prompt_eval_count": found["usage"]["prompt_tokens"],
    }
    served = request.app[SERVED]
    return await send_whole(request, await served.workers.run(json_response, body), served.settings, is_owed=True)


async def _embed_one(request: web.Request) -> web.StreamResponse:
    """POST /api/embeddings"""
    with ExitStack() as preparing:
        asked = await read_request(request, EmbedOneRequest.parse, preparing)
        found = await _embeddings(request, asked.model_name, [asked.prompt], None, is_cut=True)
    return json_response({"embedding": found["data"][0]["embedding"]})


async def _embeddings(
    request: web.Request, name: str, texts: Sequence[str], dimensions: int | None, *, is_cut: bool
) -> dict[str, Any]:
    served = request.app[SERVED]
    model = served.find(name)
    query = token_requests.EmbeddingsRequest(
        model=name, input=list(texts), dimensions=dimensions, truncate_prompt_tokens=-1 if is_cut else None
    )
    async with in_memory(served, model):
        return await embed(query, model, served, request[TENANT])


async def _list_models(request: web.Request) -> web.Response:
    """GET /api/tags"""
    served = request.app[SERVED]
    began = datetime.fromtimestamp(served.started_at, UTC).isoformat()
    named = [(name, model) for model in served.all for name in (model.model_name, *model.further_names)]
    return json_response({"models": [{**_shape(model, name), "modified_at": began} for name, model in named]})


async def _list_loaded(request: web.Request) -> web.Response:
    """GET /api/ps"""
    loaded = [model for model in request.app[SERVED].all if model.is_in_memory]
    return json_response(
        {
            "models": [
                {
                    **_shape(model),
                    "expires_at": _expires_at(model),
                    "size_vram": 0,
                    "context_length": model.engine.model_info.max_model_len,
                }
                for model in loaded
            ]
        }
    )


def _expires_at(model: ServedModel) -> str:
    seconds = None if model.idle_sleep is None else model.idle_sleep.seconds_left
    return _NEVER if seconds is None else (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def _show(request: web.Request) -> web.Response:
    """POST /api/show"""
    with ExitStack() as preparing:
        asked = await read_request(request, NamedModel.parse, preparing)
    model = request.app[SERVED].find(asked.model_name)
    sampling = model.text_model_of(asked.model_name).sampling_defaults
    parameters = "\n".join(f"{name} {value}" for name, value in sorted(sampling.items()))
    shown: dict[str, Any] = {"details": _details(model), "parameters": parameters, "modelfile": "", "template": ""}
    shown["capabilities"] = ["completion", "tools", "embedding"]
    if model.is_open and task_of(model) is not Task.GENERATE:
        shown["capabilities"] = [] if model.engine.model_info.num_labels else ["embedding"]
    if model.answer_format.reasoning is not None:
        shown["capabilities"].append("thinking")
    if model.sees:
        shown["capabilities"].append("vision")
    if model.is_open:
        info = model.engine.model_info
        shown["model_info"] = {
            "general.architecture": info.architecture,
            "general.parameter_count": info.num_parameters,
            f"{info.architecture}.context_length": info.max_model_len,
        }
    return json_response(shown)


async def _show_version(request: web.Request) -> web.Response:
    """GET /api/version"""
    return json_response({"version": OLLAMA_VERSION})


async def _pull(request: web.Request) -> web.StreamResponse:
    """POST /api/pull: a model that is served is there; administrators fetch others, to be served later."""
    with ExitStack() as preparing:
        asked = await read_request(request, NamedModel.parse, preparing)
    served, name = request.app[SERVED], asked.model_name
    try:
        served.find(name)
    except ApiError:
        if not request[TENANT].is_admin:
            raise
    else:
        return json_response(_SUCCESS)
    pulling = request.app[PULLS].pull(name)
    if asked.stream is False:
        async for _ in pulling:
            pass
        return json_response(_SUCCESS)
    async with EventStreamResponse(
        request, served.settings, framing=NDJSON, encode_error=lambda error: NDJSON.frame(dumps(error_object(error)))
    ) as stream:
        async for progress in pulling:
            counts = {"total": progress.total, "completed": progress.completed} if progress.total else {}
            await stream.write([NDJSON.frame(dumps({"status": progress.stage, **counts}))])
        await stream.end([NDJSON.frame(dumps(_SUCCESS))])
    return stream.response


async def _delete(request: web.Request) -> web.Response:
    """DELETE /api/delete, for administrators."""
    with ExitStack() as preparing:
        asked = await read_request(request, NamedModel.parse, preparing)
    if not request[TENANT].is_admin:
        raise ApiError("this server does not delete models; its operator does", status=403, code="not_allowed")
    served = request.app[SERVED]
    values = [str(model.settings.model) for model in served.all]
    await served.workers.run_long(lambda: delete_model(asked.model_name, values))
    return web.Response()


def _shape(model: ServedModel, name: str | None = None) -> dict[str, Any]:
    """The fields that the lists share. The digest is that of the name, by which clients tell models apart."""
    name = name or model.model_name
    digest = hashlib.sha256(name.encode()).hexdigest()
    size = model.engine.model_info.num_parameters if model.is_open else 0
    head = {"name": name, "model": name, "size": size, "digest": digest}
    return {**head, "details": _details(model)}


def _details(model: ServedModel) -> dict[str, Any]:
    if not model.is_open:
        return {"parent_model": "", "format": "", "family": "", "families": [], "parameter_size": "",
                "quantization_level": ""}  # fmt: skip
    info = model.engine.model_info
    return {
        "parent_model": "",
        "format": "gguf" if str(model.settings.model).endswith(".gguf") else "safetensors",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": f"{info.num_parameters / 1e9:.1f}B"
        if info.num_parameters >= 1e9
        else f"{info.num_parameters / 1e6:.0f}M",
        "quantization_level": info.quantization or info.dtype,
    }
