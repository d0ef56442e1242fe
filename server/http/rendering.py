"""vLLM's render routes: they return the token ids and parameters of a request, and generate nothing."""

from contextlib import ExitStack
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from server.api.openai.chat import CHAT_COMPLETIONS
from server.api.openai.completions import COMPLETIONS
from server.api.route import BodyRoute
from server.generation.generation_request import GenerationRequest
from server.generation.prompts import PreparedPrompt, prepare, with_pictures
from server.http.entry.access_log import REQUEST_ID
from server.http.entry.served import SERVED, in_memory, read_request
from server.http.transport.json_body import json_response, send_whole

MAX_INLINE_TOKENS = 1024  # in an answer that is encoded on the asyncio thread


def add_routes(app: web.Application) -> None:
    app.router.add_post(CHAT_COMPLETIONS.path + "/render", _make_handler(CHAT_COMPLETIONS, is_list=False))
    app.router.add_post(COMPLETIONS.path + "/render", _make_handler(COMPLETIONS, is_list=True))


def _make_handler(route: BodyRoute, *, is_list: bool) -> Handler:
    """Args:
    is_list: whether the answer has an entry for each prompt, or is that of the only one.
    """

    async def handle(request: web.Request) -> web.StreamResponse:
        served = request.app[SERVED]
        with ExitStack() as preparing:
            call = await read_request(request, route.parse, preparing)
            model = served.find(call.request.model)
            async with in_memory(served, model):
                text_model = model.text_model_of(call.request.model)
                asked = await with_pictures(call.request, text_model, served.pictures)
                prompts = await prepare(asked, text_model, model.engine, served.workers)
        head = {"request_id": call.request_id or request[REQUEST_ID], "model": model.model_name}

        def respond() -> web.Response:
            told = [head | _shape(call.request, prompt) for prompt in prompts]
            return json_response(told if is_list else told[0])

        is_long = sum(len(prompt.token_ids) for prompt in prompts) > MAX_INLINE_TOKENS
        return await send_whole(request, await served.workers.run(respond) if is_long else respond(), served.settings)

    return handle


def _shape(request: GenerationRequest, prompt: PreparedPrompt) -> dict[str, Any]:
    params = prompt.params[0]
    return {
        "token_ids": prompt.token_ids,
        "sampling_params": {
            "n": len(prompt.params),
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "min_p": params.min_p,
        },
        "priority": request.priority or 0,
        "cache_salt": request.cache_salt,
    }
