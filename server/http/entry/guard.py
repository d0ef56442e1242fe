"""Access rules of the routes, and CORS. A route needs a client's key unless it is listed here."""

from aiohttp import hdrs, web

from server.admission.guard import ANY_ORIGIN, Guard, foreign_origin, is_allowed
from server.admission.keyring import Tenant, presented_key
from server.admission.probes import PROBES
from server.protocol.errors import ApiError
from server.startup.logs import REQUEST_ID_HEADER
from server.telemetry.trace_context import TRACE_HEADER

TENANT = web.RequestKey("tenant", Tenant)
SOCKET_ROUTES = web.AppKey("socket_routes", frozenset[str])  # as they are registered

ADMIN_PREFIX = "/admin/"

# Other routes that want an administrator's key, as they are registered; their other methods are for clients.
REQUESTS, ONE_REQUEST = "/v1/requests", "/v1/requests/{id}"
LOAD_ADAPTER, UNLOAD_ADAPTER = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
ADMIN_METHODS = frozenset(
    {("POST", "/models/unload"), ("POST", LOAD_ADAPTER), ("POST", UNLOAD_ADAPTER)}
    | {(method, route) for method in ("GET", "HEAD") for route in (REQUESTS, ONE_REQUEST)}
)

# The only routes that want no key, as they are registered: probes, which tell little, and the files of the page,
# which asks its reader for the key. Balancers made for other servers probe /health, whose figures do want the key.
PUBLIC_ROUTES = PROBES | {"/health", "/", "/docs", "/static/{path}"}

_CORS_METHODS = "GET, POST, DELETE, OPTIONS"
_CORS_HEADERS = "Authorization, Content-Type, X-Api-Key, X-Request-Id, traceparent, tracestate"
_LIMIT_HEADERS = ", ".join(
    f"X-RateLimit-{kind}-{what}" for kind in ("Limit", "Remaining", "Reset") for what in ("Requests", "Tokens")
)
_CORS_EXPOSED = f"{REQUEST_ID_HEADER}, Retry-After, X-Eagre-Stream, X-Eagre-Ignored, {_LIMIT_HEADERS}, {TRACE_HEADER}"
_CORS_MAX_AGE_S = "600"


GUARD = web.AppKey("guard", Guard)


def may_see_figures(request: web.Request) -> bool:
    """Whether the request of a public route has a key, or needs none, for what not everybody may see."""
    keys = request.app[GUARD].keys
    if keys is None:
        return True
    try:
        keys.identify(presented_key(request.headers))
    except ApiError:
        return False
    return True


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


def answer_preflight(request: web.Request, guard: Guard, host: str) -> web.Response:
    """Answers a CORS preflight request, which carries no key (Fetch standard); raises ApiError (403 or 421)."""
    guard.check_host(host)
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
    return web.Response(headers=headers)  # 200: some clients do not take a 204 for a success
