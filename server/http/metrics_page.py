"""The figures that Prometheus reads."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from server.http.served_model import SERVED_MODEL


async def show_metrics(request: web.Request) -> web.Response:
    """GET /metrics"""
    return web.Response(body=request.app[SERVED_MODEL].metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})
