"""A stub of a server with known answers, which speaks all streaming routes and has no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer

TOKENS_PER_CHUNK = 3
NUM_PROMPT_TOKENS = 40  # reported for every prompt
NUM_CACHED_TOKENS = 5  # reported for every prompt
TEXTLESS = 4  # the value of max_tokens that asks for tokens without text
REFUSED, BROKEN, CUT_OFF = 1, 2, 3  # values of max_tokens that ask for a failure


class StubServer:
    """Sends max_tokens tokens, TOKENS_PER_CHUNK at a time, all of them the text "x"."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()  # of the headers of requests
        self.num_open = 0
        self.max_open = 0
        self.num_sockets = 0
        self.clients: set[tuple[str, int]] = set()  # addresses of clients that asked for completions
        app = web.Application()
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_post("/v1/chat/completions", self.completions)
        app.router.add_get("/v1/stream", self.stream)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/readiness", self.readiness)
        self.server = TestServer(app)

    @property
    def url(self) -> str:
        return str(self.server.make_url("/")).rstrip("/")

    async def chunks(self, body: dict[str, Any]) -> AsyncIterator[list[int]]:
        self.bodies.append(body)
        self.num_open += 1
        self.max_open = max(self.max_open, self.num_open)
        try:
            left = body["max_tokens"]
            while left:
                await asyncio.sleep(0.001)
                yield [7] * min(TOKENS_PER_CHUNK, left)
                left -= min(TOKENS_PER_CHUNK, left)
        finally:
            self.num_open -= 1

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "stub"}]})

    async def readiness(self, _: web.Request) -> web.Response:
        return web.Response()

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.keys.add(request.headers.get("Authorization"))
        assert request.transport is not None
        self.clients.add(request.transport.get_extra_info("peername"))
        if body["max_tokens"] == REFUSED:
            return web.json_response({"error": {"message": "queue is full"}}, status=429)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": ping\n\n")

        async def send(event: dict[str, Any]) -> None:
            if not body.get("return_token_ids"):
                for choice in event.get("choices", ()):
                    del choice["token_ids"]
            if "messages" in body:
                for choice in event.get("choices", ()):
                    choice["delta"] = {"content": choice.pop("text")}
            await response.write(b"data: " + orjson.dumps(event) + b"\n\n")

        if body["max_tokens"] == BROKEN:
            await send({"error": {"message": "the engine failed"}})
            return response
        async for token_ids in self.chunks(body):
            text = "" if body["max_tokens"] == TEXTLESS else "x" * len(token_ids)
            await send({"choices": [{"text": text, "token_ids": token_ids, "finish_reason": None}]})
        if body["max_tokens"] == CUT_OFF:
            return response
        await send({"choices": [{"text": "", "token_ids": [], "finish_reason": "length"}]})
        details = {"cached_tokens": NUM_CACHED_TOKENS}
        await send(
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": NUM_PROMPT_TOKENS,
                    "completion_tokens": body["max_tokens"],
                    "prompt_tokens_details": details,
                },
            }
        )
        await response.write(b"data: [DONE]\n\n")
        return response

    async def stream(self, request: web.Request) -> web.WebSocketResponse:
        self.num_sockets += 1
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        running: set[asyncio.Task[None]] = set()
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                running.add(asyncio.create_task(self.generate(socket, orjson.loads(message.data))))
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        return socket

    async def generate(self, socket: web.WebSocketResponse, body: dict[str, Any]) -> None:
        async def send(**event: Any) -> None:
            await socket.send_str(orjson.dumps({"id": body["id"], **event}).decode())

        if body["max_tokens"] == REFUSED:
            await send(type="error", error={"message": "queue is full"})
            return
        if body["max_tokens"] == CUT_OFF:
            await socket.close()
            return
        await send(type="start", stream_id="s", model="stub", usage={"prompt_tokens": len(body["prompt"])})
        async for token_ids in self.chunks(body):
            await send(type="delta", index=0, text="x" * len(token_ids), token_ids=token_ids)
        await send(type="done", finish_reason="length", usage={"completion_tokens": body["max_tokens"]})
