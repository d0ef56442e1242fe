"""The routes for orchestrators and monitoring: liveness, readiness, health, metrics, version."""

from dataclasses import asdict
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from engine.interface.types import EngineState
from server.http.entry.guard import may_see_figures
from server.http.entry.served import SERVED
from server.http.transport.json_body import json_response
from server.protocol.errors import without_folders
from server.serving.served_model import ServedModel
from server.serving.served_models import Phase, ServedModels
from server.startup.version import eagre_version

_STATE_WORDS = {
    EngineState.RUNNING: "requests are accepted",
    EngineState.PAUSED: "requests are accepted; they wait, because the engine is paused",
    EngineState.ASLEEP: "requests are accepted; the engine is asleep",
}


async def liveness(request: web.Request) -> web.Response:
    """200 while the engine thread runs; an orchestrator restarts the process otherwise."""
    is_alive = request.app[SERVED].is_alive
    return json_response({"status": "alive" if is_alive else "dead"}, status=200 if is_alive else 503)


async def readiness(request: web.Request) -> web.Response:
    """200 while requests are accepted; else 503 with the reason."""
    served = request.app[SERVED]
    return json_response(_readiness(served), status=_readiness_status(served))


async def health(request: web.Request) -> web.Response:
    """Readiness; for clients with a key the statistics of each model's engine too, those of the first at the top."""
    served = request.app[SERVED]
    body = _readiness(served)
    if not may_see_figures(request):
        return json_response(body, status=_readiness_status(served))
    models = {model.model_name: _health_of(model) for model in served.all}
    if served.first.is_open:
        body["stats"] = models[served.first.model_name]["stats"]
    if served.phase is not Phase.LOADING:
        body["num_streams"] = served.num_generations
    return json_response(body | {"models": models}, status=_readiness_status(served))


def _health_of(model: ServedModel) -> dict[str, Any]:
    body: dict[str, Any] = {"state": model.state, "is_alive": model.is_alive, "num_streams": model.num_generations}
    if model.load_error is not None:
        body["error"] = without_folders(model.load_error)
    if model.is_open:
        stats = model.engine.stats()
        body["stats"] = {**asdict(stats), "kv_cache_usage": stats.kv_cache_usage}
    return body


async def show_metrics(request: web.Request) -> web.Response:
    """The metrics for Prometheus."""
    served = request.app[SERVED]
    headers = {"Content-Type": CONTENT_TYPE_LATEST, "Process-Start-Time-Unix": str(served.started_at)}
    return web.Response(body=served.metrics.render(), headers=headers)


async def version(_request: web.Request) -> web.Response:
    return json_response({"name": "eagre", "version": eagre_version()})


async def hello(_request: web.Request) -> web.Response:
    """GET /api/hello, by which Claude Code finds out whether its server can be reached."""
    return json_response({"message": "hello"})


def _readiness(served: ServedModels) -> dict[str, Any]:
    match served.phase:
        case Phase.LOADING:
            detail = f"the model is loading ({served.loading_stage})"
        case Phase.DRAINING:
            detail = "the server is shutting down"
        case Phase.FAILED:
            detail = "the engine has failed"
        case Phase.READY if not served.is_alive:
            detail = "the engine does not turn"
        case Phase.READY if len(served.all) == 1:
            detail = _STATE_WORDS[served.first.engine_state]
        case Phase.READY:
            detail = "requests are accepted; " + ", ".join(
                f"{model.model_name} is {model.state}" for model in served.all
            )
    if served.store.failure is not None:
        detail += "; the store cannot be used"
    return {"status": served.phase, "detail": detail}


def _readiness_status(served: ServedModels) -> int:
    return 200 if served.phase is Phase.READY and served.is_alive else 503
