"""What every request passes before its handler: host name, web origin, key. Routes are closed unless named here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from server.admission.caller import NOBODY, work_for
from server.admission.hosts import ANY_ORIGIN, check_host, check_origin, foreign_origin, is_allowed
from server.admission.keyring import ANYBODY, KeyRing, Tenant, presented_key
from server.admission.probes import PROBES
from server.startup.logs import REQUEST_ID_HEADER, note
from server.telemetry.trace_context import TRACE_HEADER

TENANT = web.RequestKey("tenant", Tenant)
SOCKET_ROUTES = web.AppKey("socket_routes", frozenset[str])  # as they are registered

ADMIN_PREFIX = "/admin/"

# Other routes that want an administrator's key, as they are registered; their other methods are for clients.
REQUESTS, ONE_REQUEST = "/v1/requests", "/v1/requests/{id}"
_INSPECTING = frozenset({(method, route) for method in ("GET", "HEAD") for route in (REQUESTS, ONE_REQUEST)})

# The only routes that want no key, as they are registered: probes, which tell little, and the files of the page,
# which asks its reader for the key.
PUBLIC_ROUTES = PROBES | {"/", "/docs", "/static/{path}"}

_CORS_METHODS = "GET, POST, DELETE"
_CORS_HEADERS = "Authorization, Content-Type, X-Api-Key, X-Request-Id, traceparent, tracestate"
_CORS_EXPOSED = f"{REQUEST_ID_HEADER}, Retry-After, X-Eagre-Stream, {TRACE_HEADER}"
_CORS_MAX_AGE_S = "600"


@dataclass(frozen=True, slots=True)
class Guard:
    """Who may use one application.

    Args:
        keys: None where no route wants a key, as on a port of metrics alone.
        hosts: names by which clients may call the server where no key guards it; None: a Unix socket, which no web
            page can reach.
        origins: web origins whose pages may use the server.
    """

    keys: KeyRing | None
    hosts: Collection[str] | None
    origins: Collection[str]

    def admit(self, request: web.Request) -> Tenant:
        """
        Raises:
            ApiError: 421, 403, 401 or 404; the request must not reach its handler.
        """
        host = self.check_host(request)
        route = _route_of(request)
        # A page's plain GET of a route of sockets is refused like its handshake.
        is_socket = route in request.app[SOCKET_ROUTES] or hdrs.UPGRADE in request.headers
        check_origin(request.method, request.headers, host, self.origins, is_socket=is_socket)
        if self.keys is None:
            return ANYBODY
        if route.startswith(ADMIN_PREFIX) or (request.method, route) in _INSPECTING:
            return self.keys.identify_admin(presented_key(request.headers))
        if route in PUBLIC_ROUTES:
            return ANYBODY
        return self.keys.identify(presented_key(request.headers))

    def caller_of(self, tenant: Tenant) -> str:
        """The name by which budgets and queues tell the tenant from others."""
        return NOBODY if self.keys is None else self.keys.caller_of(tenant)

    def still_admits(self, tenant: Tenant) -> bool:
        """Whether a tenant that came in before may ask for more: the keys may have been read again since."""
        return self.keys is None or self.keys.holds(tenant)

    def check_host(self, request: web.Request) -> str:
        """Returns the Host header, once it is known to be none that an attacker's name server made up.

        Raises:
            ApiError: 421.
        """
        host = _host_of(request)
        is_open = self.keys is None or self.keys.is_open
        # Browsers always send the header. A program without it is no victim of a name that points elsewhere.
        if is_open and self.hosts is not None and host:
            check_host(host, self.hosts)
        return host


GUARD = web.AppKey("guard", Guard)


@web.middleware
async def guard_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Admits the request as that of a tenant, or raises; answers browsers that ask whether they may send one."""
    guard = request.app[GUARD]
    if _is_preflight(request):
        return _answer_preflight(request, guard)
    tenant = guard.admit(request)
    request[TENANT] = tenant
    work_for(guard.caller_of(tenant))  # each request has a task, and so a context, of its own
    if tenant is not ANYBODY:
        note(tenant=tenant.name)
    return await handler(request)


async def add_cors_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Lets pages of the allowed origins read the answer (an `on_response_prepare` signal)."""
    origins = request.app[GUARD].origins
    origin = request.headers.get(hdrs.ORIGIN)
    if not origins:
        return
    if ANY_ORIGIN not in origins:
        response.headers.add(hdrs.VARY, hdrs.ORIGIN)
    if origin is not None and is_allowed(origin, origins):
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = ANY_ORIGIN if ANY_ORIGIN in origins else origin
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = _CORS_EXPOSED


def _is_preflight(request: web.Request) -> bool:
    return (
        request.method == hdrs.METH_OPTIONS
        and hdrs.ORIGIN in request.headers
        and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
    )


def _answer_preflight(request: web.Request, guard: Guard) -> web.Response:
    """The answer to a browser's question before it sends a page's request, which has no key yet (Fetch standard, CORS).

    Raises:
        ApiError: 403 to pages of other origins, 421 as for any request.
    """
    guard.check_host(request)
    origin = request.headers[hdrs.ORIGIN]
    if not is_allowed(origin, guard.origins):
        raise foreign_origin(origin)
    headers: dict[str, str] = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: _CORS_METHODS,
        # SDKs add headers of their own; the origin is trusted, so its page may send what it likes.
        hdrs.ACCESS_CONTROL_ALLOW_HEADERS: request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, _CORS_HEADERS),
        hdrs.ACCESS_CONTROL_MAX_AGE: _CORS_MAX_AGE_S,
    }
    if request.headers.get("Access-Control-Request-Private-Network") == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return web.Response(status=204, headers=headers)


def _host_of(request: web.Request) -> str:
    """The Host header, or the authority of a target that is a whole URL, which stands above it (RFC 9112, 3.2.2)."""
    if request.raw_path.startswith(("/", "*")):
        return request.headers.get(hdrs.HOST, "")
    return request.url.authority


def _route_of(request: web.Request) -> str:
    """The path that the route is registered under, or else the request's own."""
    resource = request.match_info.route.resource
    return request.path if resource is None else resource.canonical
