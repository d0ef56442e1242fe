"""The routes by which orchestrators and people ask how the server is: liveness, readiness, health, metrics, version."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from engine.border.types import EngineState
from server.http.served_model import SERVED_MODEL, Phase, ServedModel
from server.startup.version import eagre_version
from server.transport.json_body import json_response

_STATE_WORDS = {
    EngineState.RUNNING: "requests are accepted",
    EngineState.PAUSED: "requests are accepted; they wait, because the engine is paused",
    EngineState.ASLEEP: "requests are accepted; the engine is asleep",
}


async def liveness(request: web.Request) -> web.Response:
    """200 while the engine thread turns; an orchestrator restarts the process otherwise."""
    is_alive = request.app[SERVED_MODEL].is_alive
    return json_response({"status": "alive" if is_alive else "dead"}, status=200 if is_alive else 503)


async def readiness(request: web.Request) -> web.Response:
    """200 while requests are accepted; else 503 with the reason."""
    served = request.app[SERVED_MODEL]
    return json_response(_readiness(served), status=_readiness_status(served))


async def health(request: web.Request) -> web.Response:
    """Readiness with the engine's figures."""
    served = request.app[SERVED_MODEL]
    body = _readiness(served)
    if served.phase is not Phase.LOADING:
        stats = served.engine.stats()
        body["stats"] = {**asdict(stats), "kv_cache_usage": stats.kv_cache_usage}
        body["num_streams"] = served.num_generations
    return json_response(body, status=_readiness_status(served))


async def show_metrics(request: web.Request) -> web.Response:
    """The figures that Prometheus reads."""
    return web.Response(body=request.app[SERVED_MODEL].metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def version(_request: web.Request) -> web.Response:
    """Which Eagre this is."""
    return json_response({"name": "eagre", "version": eagre_version()})


def _readiness(served: ServedModel) -> dict[str, Any]:
    match served.phase:
        case Phase.LOADING:
            detail = f"the model is loading ({served.loading_stage})"
        case Phase.DRAINING:
            detail = "the server is shutting down"
        case Phase.FAILED:
            detail = "the engine has failed"
        case Phase.READY:
            detail = _STATE_WORDS[served.engine_state] if served.is_alive else "the engine does not turn"
    return {"status": served.phase, "detail": detail}


def _readiness_status(served: ServedModel) -> int:
    return 200 if served.phase is Phase.READY and served.is_alive else 503
