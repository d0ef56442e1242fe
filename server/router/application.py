"""The aiohttp application of a front: the routes of a server, each with the way to its replica."""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler

from server.admission.keyring import KeyRing
from server.admission.loop_throttle import LoopThrottle
from server.admission.probes import LIVENESS, PROBES, READINESS
from server.api.openapi.operations import OPERATIONS, Operation, Tag
from server.api.route import BodyRoute
from server.http import queries, websocket
from server.http.app import hosts_of, read_keys
from server.http.entry.access_log import add_headers, log_access
from server.http.entry.error_answers import ERROR_SHAPES, GENERATING, answer_errors
from server.http.entry.guard import GUARD, SOCKET_ROUTES, Guard, add_cors_headers, guard_requests
from server.http.responses.routes import RESPONSES
from server.http.table import ROUTES
from server.http.transport.connections import TURNS, GuardedRunner
from server.http.transport.web_socket import OpenSockets
from server.router import owned_routes as things
from server.router import probes, resuming
from server.router.forwarding import forward_to_all, forward_to_best
from server.router.front import FRONT, Front
from server.router.replicas import Replicas
from server.router.sockets import relay_socket
from server.startup.settings import ServerSettings

# Paths as they are registered, where they differ from the document's.
_PATTERNS = {"/static/{path}": "/static/{path:.+}", "/v1/models/{id}": "/v1/models/{id:.+}"}

_HANDLERS: dict[tuple[str, str], Handler] = {
    **{("POST", route.path): resuming.forward_generation for route in ROUTES if isinstance(route, BodyRoute)},
    ("POST", RESPONSES): things.forward_response,
    ("GET", "/v1/streams/{id}"): resuming.resume,
    ("DELETE", "/v1/streams/{id}"): resuming.stop,
    ("GET", "/v1/requests"): things.forward_to_named,
    ("GET", "/engine/events"): things.forward_to_named,
    ("GET", "/admin/trace"): things.forward_to_named,
    ("GET", LIVENESS): probes.liveness,
    ("GET", READINESS): probes.readiness,
    ("GET", "/health"): probes.health,
    ("GET", "/metrics"): probes.metrics,
}
_FIGURES = ("/health", "/metrics")


def front_application(replicas: Replicas, settings: ServerSettings, keys: KeyRing | None = None) -> web.Application:
    """The application of a front with these replicas, which may change while it runs.

    Args:
        replicas: within their context; the application does not close them.
        settings: the doors, limits and timeouts of the front. With `front_key`, which the replicas must have too,
            resumable streams survive the replica that makes them.
        keys: of the front; those of the settings if None.

    Raises:
        KeyFileError: a key is unfit, or the file of keys cannot be read.
    """
    keys = read_keys(settings) if keys is None else keys
    hosts = None if settings.uds is not None else hosts_of(settings)
    app = _make(Front(replicas, settings), Guard(keys, hosts, settings.allowed_origins))
    app[ERROR_SHAPES] = {**queries.ERROR_SHAPES, **{route.path: route.shape_error for route in ROUTES}}
    app[SOCKET_ROUTES] = frozenset(operation.path for operation in OPERATIONS if operation.is_socket)
    app[websocket.OPEN_SOCKETS] = OpenSockets(settings.max_websockets)
    app.on_response_prepare.append(add_cors_headers)
    app.on_shutdown.append(websocket.close_sockets)
    app.on_cleanup.append(_close)
    for operation in OPERATIONS:
        if settings.metrics_port is None or operation.path not in _FIGURES:
            _add(app, operation, _handler_of(operation))
    return app


def front_metrics_application(app: web.Application) -> web.Application:
    """What machines ask of the front `app`, for a port that only they can reach: no key is wanted there."""
    front = app[FRONT]
    own = _make(front, Guard(None, hosts_of(front.settings), ()))
    own[ERROR_SHAPES] = {}
    own[SOCKET_ROUTES] = frozenset()
    for operation in OPERATIONS:
        if operation.path in (*_FIGURES, *PROBES):
            _add(own, operation, _handler_of(operation))
    return own


def make_front_runner(app: web.Application) -> web.AppRunner:
    """A runner in which a client that leaves cancels its handler, and with it the request to the replica."""
    return GuardedRunner(app, app[FRONT].settings)


def _make(front: Front, guard: Guard) -> web.Application:
    app = web.Application(
        middlewares=[log_access, answer_errors, guard_requests], client_max_size=front.settings.max_body_bytes
    )
    app[FRONT] = front
    app[GUARD] = guard
    app[TURNS] = LoopThrottle()
    app[GENERATING] = frozenset()
    app.on_response_prepare.append(add_headers)
    return app


async def _close(app: web.Application) -> None:
    app[FRONT].workers.close()


def _handler_of(operation: Operation) -> Handler:
    known = _HANDLERS.get((operation.method, operation.path))
    if known is not None:
        return known
    if operation.is_socket:
        return relay_socket
    if operation.tag is Tag.ADMIN and operation.method == "POST":
        return forward_to_all
    is_by_id = "{id}" in operation.path and operation.tag is not Tag.MODELS
    return things.forward_to_owner if is_by_id else forward_to_best


def _add(app: web.Application, operation: Operation, handler: Handler) -> None:
    path = _PATTERNS.get(operation.path, operation.path)
    if operation.method == "GET":
        has_head = operation.tag in (Tag.MODELS, Tag.HEALTH, Tag.PAGES) and operation.event is None
        app.router.add_get(path, handler, allow_head=has_head and "stream" not in str(operation.answer))
    else:
        app.router.add_route(operation.method, path, handler)
