"""The aiohttp application: every route, and what stands around them."""

from __future__ import annotations

from aiohttp import web

from server.http import health, websocket
from server.http import page as playground
from server.http.middleware import add_request_id, json_errors, request_ids
from server.http.service import SERVICE, Service
from server.routes import chat, completions


def build_app(service: Service) -> web.Application:
    """The routes of `service`, which may still be loading: its state is looked at by each request."""
    app = web.Application(
        middlewares=[request_ids, json_errors],
        client_max_size=service.settings.max_body_bytes,
    )
    app[SERVICE] = service
    app.on_response_prepare.append(add_request_id)
    app.router.add_post("/v1/completions", completions.create_completion)
    app.router.add_post("/v1/chat/completions", chat.create_chat_completion)
    app.router.add_get("/v1/stream", websocket.stream)
    app.router.add_get("/v1/models", health.models)
    app.router.add_get("/v1/models/{id:.+}", health.model)
    app.router.add_get("/liveness", health.liveness)
    app.router.add_get("/readiness", health.readiness)
    app.router.add_get("/health", health.health)
    app.router.add_get("/version", health.show_version)
    app.router.add_get("/metrics", health.metrics)
    playground.add_routes(app)
    return app


def make_runner(service: Service) -> web.AppRunner:
    """A runner in which a client that leaves cancels its handler, and with it the generation."""
    return web.AppRunner(
        build_app(service),
        handler_cancellation=True,
        handle_signals=False,
        access_log=None,  # the middleware logs
        shutdown_timeout=5.0,  # by then the streams have ended; this is for what is left in socket buffers
    )
