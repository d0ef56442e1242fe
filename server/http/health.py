"""The routes that machines ask: liveness, readiness, models, version, metrics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from server.http.body import json_response
from server.http.service import SERVICE, Phase, Service
from server.startup.version import eagre_version
from server.wire.errors import model_not_found


async def liveness(request: web.Request) -> web.Response:
    """200 while the engine thread turns; an orchestrator restarts the process otherwise."""
    is_alive = request.app[SERVICE].is_alive
    return json_response({"status": "alive" if is_alive else "dead"}, status=200 if is_alive else 503)


async def readiness(request: web.Request) -> web.Response:
    """200 while requests are accepted; else 503 with the reason."""
    service = request.app[SERVICE]
    return json_response(_readiness(service), status=_readiness_status(service))


async def health(request: web.Request) -> web.Response:
    """Readiness with the engine's figures."""
    service = request.app[SERVICE]
    body = _readiness(service)
    if service.phase is not Phase.LOADING:
        stats = service.engine.stats()
        body["stats"] = {**asdict(stats), "kv_cache_usage": stats.kv_cache_usage}
        body["num_streams"] = service.num_generations
    return json_response(body, status=_readiness_status(service))


async def models(request: web.Request) -> web.Response:
    return json_response({"object": "list", "data": [_model(request.app[SERVICE])]})


async def model(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    name = request.match_info["id"]
    if name != service.model_name:
        raise model_not_found(name, service.model_name)
    return json_response(_model(service))


async def show_version(_request: web.Request) -> web.Response:
    return json_response({"name": "eagre", "version": eagre_version()})


async def metrics(request: web.Request) -> web.Response:
    return web.Response(body=request.app[SERVICE].metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _readiness(service: Service) -> dict[str, Any]:
    match service.phase:
        case Phase.LOADING:
            detail = f"the model is loading ({service.loading_stage})"
        case Phase.DRAINING:
            detail = "the server is shutting down"
        case Phase.FAILED:
            detail = "the engine has failed"
        case Phase.READY:
            detail = "requests are accepted" if service.is_alive else "the engine does not turn"
    return {"status": service.phase, "detail": detail}


def _readiness_status(service: Service) -> int:
    return 200 if service.phase is Phase.READY and service.is_alive else 503


def _model(service: Service) -> dict[str, Any]:
    info = service.engine.model_info
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "eagre",
        "architecture": info.architecture,
        "num_parameters": info.num_parameters,
        "max_model_len": info.max_model_len,
        "dtype": info.dtype,
        "matmul_backend": info.matmul_backend,
        "attention_backend": info.attention_backend,
    }
