"""The routes of llama.cpp's API that are no completions: properties, slots, templates, embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from aiohttp import web

from engine.interface.types import EngineState
from sampling.host.params import SamplingParams
from server.api.llama_cpp.chat import LlamaChatCall
from server.api.llama_cpp.completion import error_object
from server.api.llama_cpp.generation_settings import settings_object
from server.api.llama_cpp.queries import EmbeddingRequest, LoadRequest
from server.api.openai.prompt_forms import MEDIA_MARKER
from server.api.openai.token_requests import EmbeddingsRequest
from server.api.route import ErrorShape
from server.http import models
from server.http.entry.guard import TENANT
from server.http.entry.served import SERVED, decode_pictures, in_memory, read_request
from server.http.pooling.embedding import embed, embed_tokens
from server.http.transport.json_body import json_response, send_whole
from server.protocol.errors import ApiError, unavailable
from server.serving.pooled_texts import pools_nothing
from server.serving.served_model import ServedModel
from server.startup.version import system_fingerprint

EMBEDDING, EMBEDDINGS, APPLY_TEMPLATE = "/embedding", "/embeddings", "/apply-template"
UNLOAD = "/models/unload"
ERROR_SHAPES: Mapping[str, ErrorShape] = dict.fromkeys(
    (EMBEDDING, EMBEDDINGS, APPLY_TEMPLATE, "/models/load", UNLOAD, "/props", "/slots"), error_object
)


def add_routes(app: web.Application) -> None:
    app.router.add_post(EMBEDDING, _embed)
    app.router.add_post(EMBEDDINGS, _embed)
    app.router.add_post(APPLY_TEMPLATE, _apply_template)
    app.router.add_get("/props", _show_properties)
    app.router.add_get("/slots", _list_slots)
    app.router.add_get("/lora-adapters", _list_adapters)
    app.router.add_get("/models", models.list_models)
    app.router.add_post("/models/load", _load)
    app.router.add_post(UNLOAD, _unload)


async def _embed(request: web.Request) -> web.StreamResponse:
    """POST /embedding and /embeddings: a list with an entry for each text, which has one embedding.

    Of a model that pools nothing it has those of its tokens.
    """
    with ExitStack() as preparing:
        asked = await read_request(request, EmbeddingRequest.parse, preparing)
        served = request.app[SERVED]
        model = served.find(asked.model)
        query = EmbeddingsRequest.model_construct(model=asked.model, input=asked.prompts)
        async with in_memory(served, model):
            if pools_nothing(model):
                vectors = await embed_tokens(query, model, served, request[TENANT])
            else:
                found = await embed(query, model, served, request[TENANT])
                vectors = [[entry["embedding"]] for entry in found["data"]]
    body = [{"index": index, "embedding": embedding} for index, embedding in enumerate(vectors)]
    return await send_whole(request, await served.workers.run(json_response, body), served.settings, is_owed=True)


async def _apply_template(request: web.Request) -> web.StreamResponse:
    """POST /apply-template: the text that the chat template makes of a conversation."""
    served = request.app[SERVED]
    with ExitStack() as preparing:
        call = await read_request(request, LlamaChatCall.parse, preparing)
        model = served.find(call.request.model)
        async with in_memory(served, model):
            decoded = await decode_pictures(call.conversation.pictures, model, served)
            conversation = call.conversation.with_decoded(decoded)
            text = await served.workers.run_long(conversation.render, model.text_model_of(call.request.model))
    return await send_whole(request, json_response({"prompt": text}), served.settings)


async def _show_properties(request: web.Request) -> web.Response:
    """GET /props"""
    served = request.app[SERVED]
    served.check_accepting()
    name = request.query.get("model")
    model = served.find(name)
    params = SamplingParams(**model.text_model_of(name).sampling_defaults, seed=model.settings.engine.seed)
    settings = {"n_ctx": _context_length(model), "params": settings_object(params)}
    body: dict[str, Any] = {
        "default_generation_settings": settings,
        "total_slots": model.settings.engine.max_num_seqs,
        "model_alias": model.model_name,
        "model_path": Path(str(model.settings.model)).name,  # where it lies is no client's affair
        "modalities": {"vision": model.sees, "audio": False},
        "media_marker": MEDIA_MARKER,
        "chat_template": "",
        "bos_token": "",
        "eos_token": "",
        "build_info": system_fingerprint(),
        "is_sleeping": model.is_open and model.engine_state is EngineState.ASLEEP,
    }
    if name is None and len(served.all) > 1:
        most = served.settings.models_max
        body |= {"role": "router", "max_instances": len(served.all) if most is None else most, "models_autoload": True}
    if model.is_open and model.text_model.chat_template is not None:
        body["chat_template"] = model.text_model.chat_template.source
    return json_response(body)


async def _list_slots(request: web.Request) -> web.Response:
    """GET /slots: the places of running requests, of which it says no more than whether they are taken.

    With `?fail_on_no_slot=1` it is 503 where all are taken, for load balancers.
    """
    served = request.app[SERVED]
    served.check_accepting()
    if served.settings.no_slots:
        raise ApiError(
            "this server was started with --no-slots", status=501, error_type="not_supported_error", code="no_slots"
        )
    model = served.find(request.query.get("model"))
    num_running = model.engine.stats().num_running if model.is_open else 0
    num_slots = model.settings.engine.max_num_seqs
    if request.query.get("fail_on_no_slot") and num_running >= num_slots:
        raise unavailable(f"all {num_slots} places of running requests are taken", "no_slot_available")
    return json_response(
        [
            {"id": index, "n_ctx": _context_length(model), "is_processing": index < num_running, "speculative": False}
            for index in range(num_slots)
        ]
    )


async def _list_adapters(request: web.Request) -> web.Response:
    """GET /lora-adapters: those of a model, the first by default; none changes requests that do not choose it."""
    adapters = request.app[SERVED].find(request.query.get("model")).adapters.all
    return json_response([{"id": place, "path": each.name, "scale": 0.0} for place, each in enumerate(adapters)])


async def _load(request: web.Request) -> web.Response:
    """POST /models/load: brings a served model into memory."""
    served = request.app[SERVED]
    with ExitStack() as preparing:
        asked = await read_request(request, LoadRequest.parse, preparing)
    async with in_memory(served, served.find(asked.model)):
        return json_response({"success": True})


async def _unload(request: web.Request) -> web.Response:
    """POST /models/unload, for administrators: puts a model to sleep until the next request for it."""
    served = request.app[SERVED]
    with ExitStack() as preparing:
        asked = await read_request(request, LoadRequest.parse, preparing)
    await served.residency.unload(served.find(asked.model))
    return json_response({"success": True})


def _context_length(model: ServedModel) -> int:
    return model.engine.model_info.max_model_len if model.is_open else 0
