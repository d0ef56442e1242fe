"""The routes that list the served models."""

from typing import Any

import orjson
from aiohttp import web

from server.api.anthropic.message_objects import ANTHROPIC_HEADER, anthropic_list, anthropic_model
from server.api.responses.model_catalogue import catalogue_entry
from server.http.entry.served import SERVED
from server.http.transport.json_body import json_response
from server.media.picture import MAX_PICTURES
from server.protocol.errors import without_folders
from server.serving.adapters import ServedAdapter
from server.serving.served_model import ModelState, ServedModel
from server.serving.served_models import Phase, ServedModels
from server.serving.tasks import task_of
from server.startup.model_task import Task
from server.startup.version import eagre_version


async def list_models(request: web.Request) -> web.Response:
    """GET /v1/models: OpenAI's list with Codex's catalogue beside it, or Anthropic's list for its clients."""
    served = request.app[SERVED]
    _check_loaded(served)
    if ANTHROPIC_HEADER in request.headers:
        names = [*served.all_names, *(each.name for model in served.all for each in model.adapters.all)]
        return json_response(anthropic_list(names, served.started_at))
    listed = _list_served(served)
    generating = [model for model in served.all if not model.is_open or task_of(model) is Task.GENERATE]
    catalogue = [_catalogue_entry(model, place) for place, model in enumerate(generating)]
    return json_response({"object": "list", "data": listed, "models": catalogue})


def page_state(served: ServedModels) -> str:
    """What the page would ask for first, as JSON; empty where the server takes no requests."""
    is_ready = served.phase is Phase.READY and served.is_alive
    return orjson.dumps({"data": _list_served(served)}).decode() if is_ready else ""


def _list_served(served: ServedModels) -> list[dict[str, Any]]:
    """The model objects of OpenAI's list: models, then their further names, then adapters."""
    listed = [_shape(model, served) for model in served.all]
    listed += [_shape_of_name(name, model, served) for model in served.all for name in model.further_names]
    listed += [_shape_of_adapter(adapter, model) for model in served.all for adapter in model.adapters.all]
    return listed


async def show_model(request: web.Request) -> web.Response:
    """GET /v1/models/{id}"""
    served = request.app[SERVED]
    _check_loaded(served)
    name = request.match_info["id"]
    model = served.find(name)
    if ANTHROPIC_HEADER in request.headers:
        return json_response(anthropic_model(name, served.started_at))
    for adapter in model.adapters.all:
        if adapter.name == name:
            return json_response(_shape_of_adapter(adapter, model))
    is_own = name == model.model_name
    return json_response(_shape(model, served) if is_own else _shape_of_name(name, model, served))


async def show_server(request: web.Request) -> web.Response:
    """GET /server_info, for routers, with the names of SGLang and vLLM."""
    served = request.app[SERVED]
    _check_loaded(served)
    model = served.first
    config = model.settings.engine
    return json_response(
        {
            "model_id": model.model_name,
            "model_path": without_folders(model.settings.model),
            "served_model_name": model.model_name,
            "version": eagre_version(),
            "dp_size": 1,
            "max_running_requests": config.max_num_seqs,
            "max_num_reqs": config.max_num_seqs,
            "max_prefill_tokens": config.batched_tokens(is_encoder=model.engine.model_info.is_encoder),
            "max_total_tokens": _num_cached_tokens(model),
        }
    )


def _num_cached_tokens(model: ServedModel) -> int | None:
    """Tokens that the model's pages hold, of all layers; None of a model that was never loaded."""
    if not model.is_open:
        return None
    stats = model.engine.stats()
    return stats.num_pages // stats.num_page_groups * stats.page_size


async def show_first(request: web.Request) -> web.Response:
    """GET /model_info, for routers: the model of requests that name none."""
    served = request.app[SERVED]
    _check_loaded(served)
    model = served.first
    info = model.engine.model_info
    return json_response(
        {
            "model_path": without_folders(model.settings.model),
            "tokenizer_path": without_folders(model.settings.model),
            "is_generation": task_of(model) is Task.GENERATE,
            "model_type": info.architecture,
            "architectures": [info.architecture],
            "max_model_len": info.max_model_len,
        }
    )


def _check_loaded(served: ServedModels) -> None:
    """Raises ApiError where no model has been loaded yet."""
    if served.phase is Phase.LOADING:
        served.check_accepting()


def _catalogue_entry(model: ServedModel, place: int) -> dict[str, Any]:
    max_model_len = model.engine.model_info.max_model_len if model.is_open else None
    reasons = model.is_open and model.answer_format.reasoning is not None
    return catalogue_entry(model.model_name, place, max_model_len, reasons=reasons, sees=model.sees)


def _shape_of_adapter(adapter: ServedAdapter, model: ServedModel) -> dict[str, Any]:
    """The model object of an adapter, as vLLM has it, with the name of its folder and that of its model."""
    shape: dict[str, Any] = {
        "id": adapter.name,
        "object": "model",
        "created": adapter.created,
        "owned_by": "eagre",
        "root": adapter.path.name,
        "parent": model.model_name,
    }
    if model.is_open:
        shape["max_model_len"] = model.engine.model_info.max_model_len
    return shape


def _shape(model: ServedModel, served: ServedModels) -> dict[str, Any]:
    """The model object; of a model that was never loaded, the name and the state alone."""
    shape: dict[str, Any] = {
        "id": model.model_name,
        "object": "model",
        "created": served.started_at,
        "owned_by": "eagre",
        "state": model.state,
        "status": _llama_cpp_status(model),
    }
    if model.loading_stage is not None:
        shape["loading_stage"] = model.loading_stage
    if model.load_error is not None:
        shape["error"] = without_folders(model.load_error)
    if not model.is_open:
        return shape
    info = model.engine.model_info
    shape |= {
        "architecture": info.architecture,
        "num_parameters": info.num_parameters,
        "max_model_len": info.max_model_len,
        "modalities": ["text", "image"] if model.sees else ["text"],
        "dtype": info.dtype,
        "matmul_backend": info.matmul_backend,
        "attention_backend": info.attention_backend,
    }
    if info.weight_bytes:
        shape |= {"weight_bytes": info.weight_bytes, "cache_bytes": info.cache_bytes}
    pictures = model.text_model.pictures
    if pictures is not None:
        shape |= {
            "image_tokens": pictures.max_tokens,
            "max_images": min(pictures.max_pictures, MAX_PICTURES),
            "encoder_bytes": info.encoder_bytes,
        }
    task = task_of(model)
    if task is not Task.GENERATE:
        shape["task"] = task
    if info.quantization is not None:
        shape["quantization"] = info.quantization
    if model.sampling_defaults:
        shape["sampling_defaults"] = dict(model.sampling_defaults)
    return shape


def _llama_cpp_status(model: ServedModel) -> dict[str, Any]:
    """The state in llama.cpp's words, by which its page and its clients load and unload models."""
    match model.state:
        case ModelState.READY | ModelState.PAUSED:
            return {"value": "loaded"}
        case ModelState.LOADING:
            return {"value": "loading"}
        case ModelState.ASLEEP if model.is_in_memory:
            return {"value": "sleeping"}
        case ModelState.FAILED:
            return {"value": "unloaded", "failed": True}
        case _:
            return {"value": "unloaded"}


def _shape_of_name(name: str, model: ServedModel, served: ServedModels) -> dict[str, Any]:
    """The model object of an alias or a preset; its `root` is the model's own name."""
    shape = _shape(model, served) | {"id": name, "root": model.model_name}
    if model.is_open and (sampling := model.text_model_of(name).sampling_defaults):
        shape["sampling_defaults"] = dict(sampling)
    return shape
