"""The routes that list the served models."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from server.http.served import SERVED
from server.serving.served_model import ServedModel
from server.serving.served_models import Phase, ServedModels
from server.transport.json_body import json_response


async def list_models(request: web.Request) -> web.Response:
    """GET /v1/models"""
    served = request.app[SERVED]
    _check_loaded(served)
    return json_response({"object": "list", "data": [_shape(model, served) for model in served.all]})


async def show_model(request: web.Request) -> web.Response:
    """GET /v1/models/{id}"""
    served = request.app[SERVED]
    _check_loaded(served)
    return json_response(_shape(served.find(request.match_info["id"]), served))


def _check_loaded(served: ServedModels) -> None:
    """
    Raises:
        ApiError: no model has been loaded yet.
    """
    if served.phase is Phase.LOADING:
        served.check_accepting()


def _shape(model: ServedModel, served: ServedModels) -> dict[str, Any]:
    """What is known of the model; of one that was never loaded, the name and the state alone."""
    shape: dict[str, Any] = {
        "id": model.model_name,
        "object": "model",
        "created": served.started_at,
        "owned_by": "eagre",
        "state": model.state,
    }
    if model.load_error is not None:
        shape["error"] = model.load_error
    if not model.is_open:
        return shape
    info = model.engine.model_info
    shape |= {
        "architecture": info.architecture,
        "num_parameters": info.num_parameters,
        "max_model_len": info.max_model_len,
        "dtype": info.dtype,
        "matmul_backend": info.matmul_backend,
        "attention_backend": info.attention_backend,
    }
    if model.sampling_defaults:
        shape["sampling_defaults"] = dict(model.sampling_defaults)
    return shape
