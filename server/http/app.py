"""The aiohttp application: every route, and what stands around them."""

from __future__ import annotations

from aiohttp import web

from server.http import generating, metrics_page, models, playground, probes, websocket
from server.http.access_log import add_request_id, log_access
from server.http.error_answers import ERROR_SHAPES, answer_errors
from server.http.served_model import SERVED_MODEL, ServedModel
from server.routes.route import BodyRoute, MessageRoute
from server.routes.table import ROUTES
from server.transport.connections import GuardedRunner


def build_app(served: ServedModel) -> web.Application:
    """The routes of `served`, which may still be loading: each request looks at its state."""
    app = web.Application(
        middlewares=[log_access, answer_errors],
        client_max_size=served.settings.max_body_bytes,
    )
    app[SERVED_MODEL] = served
    app[ERROR_SHAPES] = {route.path: route.shape_error for route in ROUTES}
    app[websocket.OPEN_SOCKETS] = set()
    app.on_response_prepare.append(add_request_id)
    app.on_shutdown.append(websocket.close_sockets)
    app.on_cleanup.append(_close_workers)
    for route in ROUTES:
        match route:
            case BodyRoute():
                app.router.add_post(route.path, generating.make_handler(route))
            case MessageRoute():
                app.router.add_get(route.path, websocket.make_handler(route))
    app.router.add_get("/v1/models", models.list_models)
    app.router.add_get("/v1/models/{id:.+}", models.show_model)
    app.router.add_get("/liveness", probes.liveness)
    app.router.add_get("/readiness", probes.readiness)
    app.router.add_get("/health", probes.health)
    app.router.add_get("/version", probes.version)
    app.router.add_get("/metrics", metrics_page.show_metrics)
    playground.add_routes(app)
    return app


async def _close_workers(app: web.Application) -> None:
    app[SERVED_MODEL].workers.close()


def make_runner(served: ServedModel) -> web.AppRunner:
    """A runner in which a client that leaves cancels its handler, and with it the generation."""
    return GuardedRunner(build_app(served), served.settings)
