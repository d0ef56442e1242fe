"""The aiohttp application of the router: the same routes as a server's, each forwarded to a replica."""

from functools import partial

from aiohttp import web
from aiohttp.typedefs import Handler

from server.admission.guard import Guard
from server.admission.keyring import KeyRing
from server.admission.loop_throttle import LoopThrottle
from server.admission.probes import LIVENESS, PROBES, READINESS
from server.api.openapi.operations import OPERATIONS, Operation, Tag
from server.api.route import BodyRoute
from server.http import llama_cpp, websocket
from server.http.app import error_shapes, hosts_of, read_keys
from server.http.batches.routes import BATCHES
from server.http.entry.access_log import add_headers
from server.http.entry.error_answers import ERROR_SHAPES, GENERATING
from server.http.entry.guard import GUARD, LOAD_ADAPTER, SOCKET_ROUTES, UNLOAD_ADAPTER, add_cors_headers
from server.http.entry.key_limits import add_limit_headers
from server.http.entry.middleware import APIS, enter
from server.http.responses.routes import CONVERSATIONS, RESPONSES
from server.http.table import ROUTES
from server.http.transport.connections import DESCRIPTORS, KEYS, TURNS, GuardedRunner
from server.http.transport.web_socket import OpenSockets
from server.router import adapters, failover, health_routes, key_usage, sticky_routes
from server.router.forwarding import forward_to_all, forward_to_best
from server.router.replicas import Replicas
from server.router.router import ROUTER, Router
from server.router.websocket_proxy import proxy_websocket
from server.startup.settings import ServerSettings

# Paths as they are registered, where they differ from the OpenAPI document's.
_PATTERNS = {"/static/{path}": "/static/{path:.+}", "/v1/models/{id}": "/v1/models/{id:.+}"}

_HANDLERS: dict[tuple[str, str], Handler] = {
    **{("POST", route.path): failover.forward_generation for route in ROUTES if isinstance(route, BodyRoute)},
    ("POST", RESPONSES): sticky_routes.forward_with_history,
    ("POST", CONVERSATIONS): sticky_routes.forward_with_history,
    ("POST", BATCHES): sticky_routes.forward_with_history,
    ("POST", RESPONSES + "/input_tokens"): sticky_routes.forward_with_history,
    ("POST", RESPONSES + "/compact"): sticky_routes.forward_with_history,
    ("POST", "/models/load"): forward_to_all,
    ("POST", llama_cpp.UNLOAD): forward_to_all,
    ("POST", LOAD_ADAPTER): adapters.load,
    ("POST", UNLOAD_ADAPTER): adapters.unload,
    ("GET", "/v1/streams/{id}"): failover.resume_stream,
    ("DELETE", "/v1/streams/{id}"): failover.stop_stream,
    ("GET", "/v1/requests"): sticky_routes.forward_to_named,
    ("GET", "/engine/events"): sticky_routes.forward_to_named,
    ("GET", "/admin/trace"): sticky_routes.forward_to_named,
    ("GET", "/admin/usage"): key_usage.show_usage,
    ("POST", "/admin/usage/reset"): key_usage.reset_usage,
    ("GET", LIVENESS): health_routes.liveness,
    ("GET", READINESS): health_routes.readiness,
    ("GET", "/health"): health_routes.health,
    ("GET", "/metrics"): health_routes.metrics,
}
_METRICS_PORT_PATHS = ("/health", "/metrics")


def router_application(replicas: Replicas, settings: ServerSettings, keys: KeyRing | None = None) -> web.Application:
    """The application of a router before these replicas, which it does not close; raises KeyFileError.

    With `front_key` in its settings, resumable streams survive the replica that generates them.
    """
    keys = read_keys(settings) if keys is None else keys
    hosts = None if settings.uds is not None else hosts_of(settings)
    app = _make_app(Router(replicas, settings), Guard(keys, hosts, settings.allowed_origins))
    replicas.preparing = partial(adapters.restored, app[ROUTER])
    app[ERROR_SHAPES] = error_shapes()
    app[SOCKET_ROUTES] = frozenset(operation.path for operation in OPERATIONS if operation.is_socket)
    app[websocket.OPEN_SOCKETS] = OpenSockets(settings.max_websockets)
    app.on_response_prepare.append(add_limit_headers)
    app.on_response_prepare.append(add_cors_headers)
    app.on_shutdown.append(websocket.close_sockets)
    app.on_cleanup.append(_close_workers)
    app.cleanup_ctx.append(key_usage.watch_tokens(keys))
    for operation in OPERATIONS:
        if settings.metrics_port is None or operation.path not in _METRICS_PORT_PATHS:
            _add_route(app, operation)
    return app


def router_metrics_application(app: web.Application) -> web.Application:
    """Health and metrics of the router `app`, for a port of its own that needs no API key."""
    router = app[ROUTER]
    metrics_app = _make_app(router, Guard(None, hosts_of(router.settings), ()))
    metrics_app[ERROR_SHAPES] = {}
    metrics_app[SOCKET_ROUTES] = frozenset()
    for operation in OPERATIONS:
        if operation.path in (*_METRICS_PORT_PATHS, *PROBES):
            _add_route(metrics_app, operation)
    return metrics_app


def make_router_runner(app: web.Application) -> GuardedRunner:
    """A runner that cancels the handler of a client that leaves, and with it the request to the replica."""
    return GuardedRunner(app, app[ROUTER].settings)


def _make_app(router: Router, guard: Guard) -> web.Application:
    app = web.Application(middlewares=[enter], client_max_size=router.settings.max_body_bytes)
    app[ROUTER] = router
    app[APIS] = router.settings.apis
    app[GUARD] = guard
    app[TURNS] = LoopThrottle()
    if guard.keys is not None:
        app[KEYS] = guard.keys
    app[DESCRIPTORS] = 2  # each connection has another one, to a replica
    app[GENERATING] = frozenset()
    app.on_response_prepare.append(add_headers)
    return app


async def _close_workers(app: web.Application) -> None:
    app[ROUTER].workers.close()


def _handler_of(operation: Operation) -> Handler:
    special = _HANDLERS.get((operation.method, operation.path))
    if special is not None:
        return special
    if operation.is_socket:
        return proxy_websocket
    if operation.tag is Tag.ADMIN and operation.method == "POST":
        return forward_to_all
    is_by_id = "{id}" in operation.path and operation.tag is not Tag.MODELS
    return sticky_routes.forward_to_owner if is_by_id else forward_to_best


def _add_route(app: web.Application, operation: Operation) -> None:
    path, handler = _PATTERNS.get(operation.path, operation.path), _handler_of(operation)
    if operation.method == "GET":
        has_head = operation.tag in (Tag.MODELS, Tag.HEALTH, Tag.PAGES) and operation.event is None
        app.router.add_get(path, handler, allow_head=has_head and "stream" not in str(operation.answer))
    else:
        app.router.add_route(operation.method, path, handler)
