"""A server that speaks the wire protocol from a script, so that the playground can be tried without a model.

The last line of the prompt, or of the last message, chooses what happens:

- "refuse": an error before the stream; "break": an error after two tokens;
- "drop": the connection dies after two tokens, once `may_drop` is set;
- "endless": tokens until the client goes or cancels;
- "code": prose, a fenced code block and markup that must stay text;
- anything else: the words of STORY, one token each.

`StubServer.requests` keeps the bodies as they came, `aborted` is set once a client has ended an
answer early, and `is_ready = False` makes a server that is still loading.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

STATIC = Path(__file__).resolve().parents[3] / "static"
MODEL = "stub-model"
STORY = " there was a river that ran the wrong way, and nobody minded.".replace(" ", "| ").split("|")[1:]
CODE = ["Like ", "this:\n", "``", "`python\n", "print(", "'hi')\n", "```\n", "<img src=x onerror=", "alert(1)>"]
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TOKEN_INTERVAL = 0.003  # seconds
REFUSAL = {
    "message": "temperature is 9; it must be from 0 to 2",
    "type": "invalid_request_error",
    "param": "temperature",
    "code": "invalid_value",
}
FAILURE = {"message": "the engine has failed", "type": "server_error", "param": None, "code": "engine_failed"}


class StubServer:
    """Runs on a free port of the loopback interface between `start()` and `stop()`."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.aborted = asyncio.Event()
        self.may_drop = asyncio.Event()  # a connection that dies takes along what its client has not read yet
        self.is_ready = True
        self.models = [MODEL]
        self.modalities = ["text"]  # of all of them
        self.num_prompt_tokens = 12  # of every prompt, as the tokenizer says
        self.num_watchers = 0  # of the engine
        self.is_quiet = False  # the engine has nothing to do
        self.calls: list[tuple[str, str]] = []  # of administrators: name, and the header that has the key
        self._runner: web.AppRunner | None = None
        self._sockets: set[web.WebSocketResponse] = set()
        self.origin = ""

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.add_routes(
            [
                web.get("/", self._index),
                web.static("/static", STATIC),
                web.get("/readiness", self._readiness),
                web.get("/v1/models", self._models),
                web.post("/tokenize", self._tokenize),
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._completions),
                web.get("/v1/stream", self._stream),
                web.get("/engine/events", self._engine_events),
                web.post("/admin/{name}", self._admin),
                web.get("/admin/usage", self._nothing),
                web.get("/admin/models", self._nothing),
            ]
        )
        app.on_response_prepare.append(_add_headers)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.origin = f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        """Goes away as a killed server does: open sockets and streams are cut."""
        for socket in list(self._sockets):
            await socket.close()
        assert self._runner is not None
        await self._runner.cleanup()

    async def _index(self, _: web.Request) -> web.StreamResponse:
        return web.FileResponse(STATIC / "index.html")

    async def _readiness(self, _: web.Request) -> web.Response:
        if self.is_ready:
            return web.json_response({"status": "ready", "detail": "requests are accepted"})
        detail = "the model is loading (compile, 3 of 12)"
        return web.json_response({"status": "loading", "detail": detail}, status=503)

    async def _models(self, _: web.Request) -> web.Response:
        shared = {"object": "model", "created": 0, "owned_by": "eagre", "max_model_len": 2048}
        shared |= {"modalities": self.modalities, "image_tokens": 256}
        shared["sampling_defaults"] = {"temperature": 0.2, "top_p": 0.9, "top_k": 40}
        return web.json_response({"object": "list", "data": [{"id": name, **shared} for name in self.models]})

    async def _tokenize(self, _: web.Request) -> web.Response:
        return web.json_response({"count": self.num_prompt_tokens, "max_model_len": 2048})

    async def _engine_events(self, request: web.Request) -> web.StreamResponse:
        """One request reads its prompt and answers, over and over; every event tells of one more step."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.num_watchers += 1
        try:
            for step in count(1):
                event = _engine_event(step)
                if self.is_quiet:
                    event |= {"num_steps": 7, "num_running": 0, "slots": [], "steps": []}
                await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                await asyncio.sleep(0.02)
        finally:
            self.num_watchers -= 1
        return response

    async def _admin(self, request: web.Request) -> web.Response:
        self.calls.append((request.match_info["name"], request.headers.get("Authorization", "")))
        return web.json_response({"state": "paused"})

    async def _nothing(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": []})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        if _script(body) == "refuse":
            return web.json_response({"error": REFUSAL}, status=400)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": ping\n\n")

        async def send(payload: dict[str, Any]) -> None:
            await response.write(b"data: " + json.dumps(payload).encode() + b"\n\n")

        num_tokens = 0
        try:
            for text in _tokens(body):
                if text is None:
                    await self._fail(_script(body), request, send)
                    return response
                num_tokens += 1
                await send({"choices": [_choice(body, text, [num_tokens], None)], "usage": None})
                await asyncio.sleep(TOKEN_INTERVAL)
        except (asyncio.CancelledError, ConnectionResetError):
            self.aborted.set()
            raise
        await send({"choices": [_choice(body, "", [], _finish(body))], "usage": None})
        await send({"choices": [], "usage": _usage(num_tokens)})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _fail(self, script: str, request: web.Request, send: Callable[[dict[str, Any]], Any]) -> None:
        if script == "break":
            await send({"error": FAILURE})  # and the end, without [DONE]
        elif request.transport is not None:
            await self.may_drop.wait()
            request.transport.abort()

    async def _stream(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self._sockets.add(socket)
        running: dict[str, asyncio.Task[None]] = {}
        async for frame in socket:
            if frame.type is not WSMsgType.TEXT:
                continue
            message = json.loads(frame.data)
            if message["type"] == "generate":
                self.requests.append(message)
                running[message["id"]] = asyncio.create_task(self._generate(socket, message))
            else:
                running[message["id"]].cancel()
        for task in running.values():
            task.cancel()
        self._sockets.discard(socket)
        return socket

    async def _generate(self, socket: web.WebSocketResponse, message: dict[str, Any]) -> None:
        id_ = message["id"]
        num_tokens = 0
        try:
            if _script(message) == "refuse":
                await socket.send_json({"type": "error", "id": id_, "error": REFUSAL})
                return
            usage = {"prompt_tokens": 4}
            await socket.send_json({"type": "start", "id": id_, "stream_id": "s", "model": MODEL, "usage": usage})
            for text in _tokens(message):
                if text is None:
                    if _script(message) == "break":
                        await socket.send_json({"type": "error", "id": id_, "error": FAILURE})
                    else:
                        await self.may_drop.wait()
                        await socket.close()
                    return
                num_tokens += 1
                delta = {"type": "delta", "id": id_, "index": 0, "text": text, "token_ids": [num_tokens]}
                await socket.send_json(delta)
                await asyncio.sleep(TOKEN_INTERVAL)
            finish = _finish(message)
        except asyncio.CancelledError:
            self.aborted.set()
            finish = "abort"
            if socket.closed:
                return
        done = {"type": "done", "id": id_, "finish_reason": finish, "usage": _usage(num_tokens)}
        await socket.send_json(done)


def _engine_event(step: int) -> dict[str, Any]:
    computed, output = min(8 * step, 40), max(step - 5, 0)
    request = {
        "id": "mine", "key": "request-0", "slot": 1, "state": "answer" if output else "prompt", "prompt": 40,
        "computed": computed, "cached": 8, "output": output, "pages": 3, "preemptions": 0, "age_ms": 20.0 * step,
        "queue_ms": 5.0,
    }  # fmt: skip
    began = 20.0 * step
    moments = [began + offset for offset in (0, 1, 2, 3, 15, 16, 2, 15)]
    return {
        "model": MODEL, "state": "ready", "now_ms": began + 20, "num_slots": 4, "num_running": 1, "num_waiting": 0,
        "num_steps": step, "num_prompt_tokens": 40, "num_generation_tokens": output, "num_preemptions": 0,
        "prefix_cache_queries": 40, "prefix_cache_hits": 8, "device_idle_fraction": 0.25, "slots": [request],
        "queue": [], "steps": [[step, 1, 8, *moments, 5.0 * step]],
        "pages": {
            "page_size": 16, "total": 12, "free": 7, "cached": 2, "active": 3, "shared": 1, "pages_per_cell": 1,
            "map": "2as2c7f",
        },
    }  # fmt: skip


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    response.headers["Cache-Control"] = "no-cache"


def _script(body: dict[str, Any]) -> str:
    prompt: Any = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
    if isinstance(prompt, list):  # of parts, of which the text is the last
        prompt = prompt[-1].get("text", "")
    return str(prompt).rsplit("\n", 1)[-1]


def _tokens(body: dict[str, Any]) -> Iterator[str | None]:
    """The texts of the tokens, at most max_tokens; None where the answer breaks off."""
    match _script(body):
        case "endless":
            while True:
                yield " more"
        case "break" | "drop":
            yield from [" two", " tokens", None]
        case "code":
            yield from CODE
        case _:
            yield from STORY[: body.get("max_tokens")]


def _finish(body: dict[str, Any]) -> str:
    return "length" if body.get("max_tokens", len(STORY)) < len(STORY) else "stop"


def _choice(body: dict[str, Any], text: str, token_ids: list[int], finish: str | None) -> dict[str, Any]:
    choice = {"index": 0, "token_ids": token_ids, "finish_reason": finish}
    return {**choice, "delta": {"content": text}} if "messages" in body else {**choice, "text": text}


def _usage(num_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 4, "completion_tokens": num_tokens, "total_tokens": 4 + num_tokens}
