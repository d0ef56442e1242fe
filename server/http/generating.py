"""Drives a route whose calls are POST requests: from the body to a stream of chunks, or to one JSON body."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler

from server.http import sse
from server.http.access_log import REQUEST_ID, note_generation
from server.http.json_body import json_response, read_json
from server.http.served_model import SERVED_MODEL
from server.routes.route import AnswerContext, BodyRoute


def make_handler(route: BodyRoute) -> Handler:
    """The handler of the calls of `route`."""

    async def handle(request: web.Request) -> web.StreamResponse:
        served = request.app[SERVED_MODEL]
        served.check_accepting()
        call = route.parse(await read_json(request))
        async with served.generate(call.request) as generation:
            request_id = call.request_id or request[REQUEST_ID]
            writer = call.make_writer(
                generation, AnswerContext(route.framing, request_id, served.model_name, served.tokenizer)
            )
            try:
                if call.is_streamed:
                    return await sse.respond(request, route, generation, writer, served.settings)
                answers = await generation.collect()

                def respond() -> web.Response:
                    return json_response(writer.to_dict(answers))

                return await asyncio.to_thread(respond) if writer.is_slow else respond()
            finally:
                note_generation(generation)

    return handle
