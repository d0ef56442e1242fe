"""The routes that list the served model."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from server.http.served_model import SERVED_MODEL, ServedModel
from server.transport.json_body import json_response
from server.wire.errors import model_not_found


async def list_models(request: web.Request) -> web.Response:
    """GET /v1/models"""
    return json_response({"object": "list", "data": [_shape(request.app[SERVED_MODEL])]})


async def show_model(request: web.Request) -> web.Response:
    """GET /v1/models/{id}"""
    served = request.app[SERVED_MODEL]
    name = request.match_info["id"]
    if name != served.model_name:
        raise model_not_found(name, served.model_name)
    return json_response(_shape(served))


def _shape(served: ServedModel) -> dict[str, Any]:
    info = served.engine.model_info
    shape = {
        "id": served.model_name,
        "object": "model",
        "created": served.started_at,
        "owned_by": "eagre",
        "architecture": info.architecture,
        "num_parameters": info.num_parameters,
        "max_model_len": info.max_model_len,
        "dtype": info.dtype,
        "matmul_backend": info.matmul_backend,
        "attention_backend": info.attention_backend,
    }
    if served.sampling_defaults:
        shape["sampling_defaults"] = dict(served.sampling_defaults)
    return shape
