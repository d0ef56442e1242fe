"""The aiohttp applications: every route, and what stands around them."""

from pathlib import Path

from aiohttp import web

from server.admission.admission_budget import FairLimit
from server.admission.guard import Guard
from server.admission.keyring import FRONT_NAME, KeyRing
from server.admission.loop_throttle import LoopThrottle
from server.admission.probes import LIVENESS, READINESS
from server.api.anthropic.message_objects import REQUEST_ID_HEADER
from server.api.anthropic.messages import MESSAGES
from server.api.openapi import handlers
from server.api.route import BodyRoute, ErrorShape, MessageRoute
from server.http import (
    adapters,
    admin,
    engine_events,
    generating,
    health,
    inspecting,
    llama_cpp,
    models,
    ollama,
    queries,
    rendering,
    usage,
    websocket,
)
from server.http.batches import routes as batches
from server.http.entry.access_log import REQUEST_ID, add_headers
from server.http.entry.error_answers import ERROR_SHAPES, GENERATING
from server.http.entry.guard import GUARD, SOCKET_ROUTES, add_cors_headers
from server.http.entry.key_limits import add_limit_headers
from server.http.entry.middleware import APIS, enter
from server.http.entry.served import SERVED
from server.http.mcp import routes as mcp
from server.http.playground import routes as playground
from server.http.responses import routes as responses
from server.http.responses.response_socket import open_socket
from server.http.streams import resuming
from server.http.streams.request_store import REQUEST_STORE, StreamRequestStore, sweep
from server.http.table import ROUTES
from server.http.transport.connections import KEYS, TURNS, GuardedRunner
from server.http.transport.json_body import UNREAD
from server.http.transport.web_socket import OpenSockets
from server.serving.served_models import ServedModels
from server.startup.settings import ServerSettings


def read_keys(settings: ServerSettings) -> KeyRing:
    """Raises KeyFileError: a key is unfit, or the file of keys cannot be read."""
    file = None if settings.api_key_file is None else Path(settings.api_key_file)
    keys = settings.api_keys
    if settings.front_key is not None and (keys or file is not None):  # alone it would close an open server
        keys = (*keys, f"{settings.front_key} {FRONT_NAME}")  # its fronts ask for figures
    return KeyRing(keys, file, settings.admin_keys)


def error_shapes() -> dict[str, ErrorShape]:
    """How errors look, by the path of a route; elsewhere they have OpenAI's shape."""
    return {
        **queries.ERROR_SHAPES,
        **ollama.ERROR_SHAPES,
        **llama_cpp.ERROR_SHAPES,
        **{route.path: route.shape_error for route in ROUTES},
    }


def build_app(served: ServedModels, keys: KeyRing) -> web.Application:
    """Builds the application with every route. The models may still be loading; each request checks their state."""
    settings = served.settings
    hosts = None if settings.uds is not None else hosts_of(settings)
    app = _make_app(served, Guard(keys, hosts, settings.allowed_origins), served.turns)
    app[ERROR_SHAPES] = error_shapes()
    app[SOCKET_ROUTES] = frozenset(route.path for route in ROUTES if isinstance(route, MessageRoute))
    app[GENERATING] = frozenset([*(route.path for route in ROUTES), responses.RESPONSES])
    app[websocket.OPEN_SOCKETS] = OpenSockets(settings.max_websockets)
    app[UNREAD] = FairLimit(settings.max_preparing_bytes)
    served.metrics.watch_keys(lambda: keys.accounts)
    app[REQUEST_STORE] = StreamRequestStore(served, ROUTES)
    app.cleanup_ctx.append(sweep)
    app.on_response_prepare.append(add_limit_headers)
    app.on_response_prepare.append(add_cors_headers)
    app.on_response_prepare.append(_add_anthropics_header)
    app.on_shutdown.append(websocket.close_sockets)
    app.on_cleanup.append(_close)
    for route in ROUTES:
        match route:
            case BodyRoute() if route.path not in ollama.GENERATING:
                app.router.add_post(route.path, generating.make_handler(route))
            case MessageRoute():
                app.router.add_get(route.path, websocket.make_handler(route), allow_head=False)
    app.router.add_post("/v1/requests/{id}/cancel", generating.cancel)
    app.router.add_delete("/v1/requests/{id}", generating.cancel)
    app.router.add_get("/v1/streams/{id}", resuming.resume, allow_head=False)
    app.router.add_delete("/v1/streams/{id}", resuming.stop)
    app.router.add_get("/v1/models", models.list_models)
    app.router.add_get("/v1/models/{id:.+}", models.show_model)
    for path in ("/server_info", "/get_server_info"):
        app.router.add_get(path, models.show_server)
    for path in ("/model_info", "/get_model_info"):
        app.router.add_get(path, models.show_first)
    queries.add_routes(app)
    rendering.add_routes(app)
    ollama.add_routes(app)
    llama_cpp.add_routes(app)
    responses.add_routes(app)
    batches.add_routes(app, keys)
    handle_socket = websocket.make_socket_handler(responses.RESPONSES, open_socket)
    app.router.add_get(responses.RESPONSES, handle_socket, allow_head=False)
    _add_probes(app)
    app.router.add_get("/version", health.version)
    app.router.add_get("/api/hello", health.hello)
    if settings.metrics_port is None:
        _add_figures(app)
    engine_events.add_routes(app)
    inspecting.add_routes(app)
    admin.add_routes(app)
    adapters.add_routes(app)
    usage.add_routes(app)
    mcp.add_routes(app, settings)
    handlers.add_routes(app, served.workers, is_strict=settings.strict_parameters, apis=settings.apis)
    if not settings.no_playground:
        playground.add_routes(app, lambda: models.page_state(served), settings.playground_peers)
    return app


def build_metrics_app(served: ServedModels) -> web.Application:
    """Builds the application of the metrics port: probes and metrics, without keys and with a throttle of its own."""
    app = _make_app(served, Guard(None, hosts_of(served.settings), ()), LoopThrottle())
    app[ERROR_SHAPES] = {}
    app[SOCKET_ROUTES] = app[GENERATING] = frozenset()
    _add_probes(app)
    _add_figures(app)
    return app


def make_runner(app: web.Application) -> GuardedRunner:
    """Makes the runner. When a client disconnects, its handler is cancelled, which aborts the generation."""
    return GuardedRunner(app, app[SERVED].settings)


def _make_app(served: ServedModels, guard: Guard, turns: LoopThrottle) -> web.Application:
    app = web.Application(
        middlewares=[enter],
        client_max_size=served.settings.max_body_bytes,
    )
    app[SERVED] = served
    app[APIS] = served.settings.apis
    app[GUARD] = guard
    app[TURNS] = turns
    if guard.keys is not None:
        app[KEYS] = guard.keys
    app.on_response_prepare.append(add_headers)
    return app


def _add_probes(app: web.Application) -> None:
    app.router.add_get(LIVENESS, health.liveness)
    app.router.add_get(READINESS, health.readiness)


def _add_figures(app: web.Application) -> None:
    app.router.add_get("/health", health.health)
    app.router.add_get("/metrics", health.show_metrics)


async def _add_anthropics_header(request: web.Request, response: web.StreamResponse) -> None:
    """Adds the header from which Anthropic's client libraries read the request's id."""
    if request.path.startswith(MESSAGES.path) and REQUEST_ID in request:
        response.headers[REQUEST_ID_HEADER] = request[REQUEST_ID]


def hosts_of(settings: ServerSettings) -> frozenset[str]:
    """Returns the accepted host names in lower case: the allowed hosts and those that the server listens on."""
    return frozenset(name.lower() for name in (*settings.allowed_hosts, *settings.hosts))


async def _close(app: web.Application) -> None:
    await app[SERVED].close()
