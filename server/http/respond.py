"""The two ways in which a generating route answers: a stream of chunks, or one JSON body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

from server.answering.generation import Answer, Generation
from server.http import sse
from server.http.body import json_response
from server.http.service import SERVICE
from server.routes.answer import note_progress
from server.routes.chunks import Chunks
from server.wire.requests import GenerationRequest


async def respond(
    request: web.Request,
    body: GenerationRequest,
    generation: Generation,
    *,
    make_chunks: Callable[[], Chunks],
    make_reply: Callable[[Sequence[Answer]], dict[str, Any]],
    has_logprobs: bool,
) -> web.StreamResponse:
    """Answers as `body` asks for, in the object shapes of a route.

    Args:
        make_chunks: encodes a stream.
        make_reply: the whole JSON object.
        has_logprobs: those of a long answer take a while to write, so it is done in a worker thread.
    """
    try:
        if body.stream:
            return await sse.respond(
                request,
                generation,
                make_chunks(),
                include_usage=body.wants_usage,
                settings=request.app[SERVICE].settings,
            )
        answers = await generation.collect()

        def reply() -> web.Response:
            return json_response(make_reply(answers))

        return await asyncio.to_thread(reply) if has_logprobs else reply()
    finally:
        note_progress(generation)
