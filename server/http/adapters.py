"""The routes that load and drop low-rank adapters at run time, as vLLM has them; they want an administrator's key."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from urllib.parse import quote

from aiohttp import web

from server.http.admin import read_admin_body
from server.http.entry.guard import LOAD_ADAPTER, UNLOAD_ADAPTER
from server.http.entry.served import SERVED, in_memory
from server.http.streams.router_headers import REPLACED_HEADER
from server.protocol.admin_requests import LoadAdapterBody, UnloadAdapterBody
from server.protocol.errors import ApiError, invalid_value, shorten, unavailable
from server.serving.served_model import ServedModel
from server.serving.served_models import ServedModels
from server.startup.logs import log

MAX_NAME = 200  # characters


def add_routes(app: web.Application) -> None:
    app.router.add_post(LOAD_ADAPTER, _load)
    app.router.add_post(UNLOAD_ADAPTER, _unload)


async def _load(request: web.Request) -> web.Response:
    """POST /v1/load_lora_adapter: serves an adapter from a folder or file on the server's machine."""
    body = await read_admin_body(request, LoadAdapterBody)
    served, name = request.app[SERVED], body.lora_name
    model = served.find(body.base_model_name)
    if not model.settings.enable_lora:
        raise ApiError(
            f"the model {model.model_name} takes no adapters at run time; --enable-lora turns that on, or enable-lora "
            "in its table",
            code="lora_disabled",
        )  # fmt: skip
    if not name.strip() or len(name) > MAX_NAME or not name.isprintable():
        raise invalid_value(
            f"lora_name is {shorten(name)}; it must have 1 to {MAX_NAME} visible characters", "lora_name"
        )
    if not body.lora_path:
        raise invalid_value('lora_path is ""; it must be a folder or file on the server\'s machine', "lora_path")
    check = partial(_check_name, name, model, served)
    check()
    async with nullcontext() if model.is_open else in_memory(served, model):
        replaced = await model.adapters.load(name, Path(body.lora_path), in_place=body.load_inplace, check=check)
    log.info("admin", action="load_lora_adapter", adapter=shorten(name))
    headers = None if replaced is None else {REPLACED_HEADER: quote(bytes(replaced))}
    return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.", headers=headers)


async def _unload(request: web.Request) -> web.Response:
    """POST /v1/unload_lora_adapter: serves an adapter no longer; requests that run keep it."""
    body = await read_admin_body(request, UnloadAdapterBody)
    served = request.app[SERVED]
    taking = [each for each in served.all if each.settings.enable_lora]
    model = next((each for each in served.all if body.lora_name in each.adapters), *(taking[:1] or [served.first]))
    if not model.settings.enable_lora:
        raise ApiError(f"the model {model.model_name} drops no adapters at run time", code="lora_disabled")
    model.adapters.remove(body.lora_name)
    log.info("admin", action="unload_lora_adapter", adapter=shorten(body.lora_name))
    return web.Response(text=f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _check_name(name: str, model: ServedModel, served: ServedModels) -> None:
    """Raises ApiError where a model is served no more, or cannot have an adapter of this name because of the others."""
    if model not in served.all:
        raise unavailable(f"the model {model.model_name} was just replaced or removed; try again", "not_loaded")
    if any(name in each.own_names for each in served.all):
        raise invalid_value(f"lora_name is {shorten(name)}, which is the name of a model", "lora_name")
    other = next((each for each in served.all if each is not model and name in each.adapters), None)
    if other is not None:
        raise invalid_value(
            f"lora_name is {shorten(name)}, which is the name of an adapter of {other.model_name}", "lora_name"
        )
