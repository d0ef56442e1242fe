"""Where handlers find the models that their application serves."""

from __future__ import annotations

from aiohttp import web

from server.serving.served_models import ServedModels

SERVED = web.AppKey("served", ServedModels)
