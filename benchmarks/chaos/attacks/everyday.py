"""Requests of all kinds as well-behaved and careless clients send them, for the quiet round."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import orjson

from benchmarks.chaos.target import ADMIN_KEY

_LEAVING = 0.05  # share of clients that do not read their answer
_DEEP = b'{"prompt":' + b"[" * 400 + b"]" * 400 + b"}"
_LONG = orjson.dumps({"prompt": "x" * 200_000})
_HI = [{"role": "user", "content": "hi"}]


class Visitor:
    """Sends the requests, and counts them and their answers."""

    def __init__(self, url: str, session: aiohttp.ClientSession, draw: random.Random) -> None:
        self.url, self.session, self.draw = url, session, draw
        self.num_sent = 0
        self.answers: Counter[str] = Counter()
        self.failures: set[str] = set()
        self.operating = asyncio.Lock()  # whoever has it may change the engine's state

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, expected: tuple[int, ...] = (200,), **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        self.num_sent += 1
        async with self.session.request(method, self.url + path, **options) as answer:
            self.answers[str(answer.status)] += 1
            if answer.status not in expected:
                self.failures.add(
                    f"{method} {path.split('_', maxsplit=1)[0]}: {answer.status} {(await answer.read())[:300]!r}"
                )
            yield answer

    async def send(self, method: str, path: str, expected: tuple[int, ...] = (200,), **options: Any) -> bytes:
        """The body of the answer; now and then the connection is closed without reading it."""
        async with self.request(method, path, expected, **options) as answer:
            if self.draw.random() < _LEAVING:
                answer.close()
                return b""
            return await answer.read()

    async def create(self, path: str, body: dict[str, Any]) -> str:
        """The id of what the request has created."""
        async with self.request("POST", path, json=body) as answer:
            name: str = orjson.loads(await answer.read()).get("id", "none")
            return name


async def completion(visitor: Visitor) -> None:
    body = {"prompt": "tide", "max_tokens": 3, "stream": visitor.draw.random() < 0.5}
    await visitor.send("POST", "/v1/completions", json=body)


async def chat(visitor: Visitor) -> None:
    body: dict[str, Any] = {"messages": _HI, "max_tokens": 4, "stream": visitor.draw.random() < 0.7}
    if visitor.draw.random() < 0.3:
        body |= {"logprobs": True, "n": 2}
    await visitor.send("POST", "/v1/chat/completions", json=body)


async def anthropic(visitor: Visitor) -> None:
    await visitor.send("POST", "/v1/messages", json={"messages": _HI, "max_tokens": 2})


async def ollama(visitor: Visitor) -> None:
    path, field, value = visitor.draw.choice(
        [("/api/chat", "messages", _HI), ("/api/generate", "prompt", "tide"), ("/api/embed", "input", "abc")]
    )
    body: dict[str, Any] = {field: value, "model": "fake", "options": {"num_predict": 3}}
    body["stream"] = visitor.draw.random() < 0.5
    await visitor.send("POST", path, (200, 404), json=body)


async def llama_cpp(visitor: Visitor) -> None:
    body = {"prompt": "tide", "n_predict": 3, "stream": visitor.draw.random() < 0.5}
    await visitor.send("POST", "/completion", json=body)
    await visitor.send("GET", visitor.draw.choice(["/props", "/slots"]))


async def tokens(visitor: Visitor) -> None:
    path, body = visitor.draw.choice(
        [("/tokenize", {"prompt": "tide " * 50}), ("/detokenize", {"tokens": [65, 66]}),
         ("/v1/embeddings", {"input": "abc"}), ("/v1/chat/completions/render", {"messages": _HI})]
    )  # fmt: skip
    await visitor.send("POST", path, json=body)


async def looks(visitor: Visitor) -> None:
    path = visitor.draw.choice(["/v1/models", "/health", "/metrics", "/version", "/api/tags"])
    await visitor.send("GET", path)


async def grammar(visitor: Visitor) -> None:
    """A choice or a schema; there are more than the cache of compiled grammars holds."""
    number = visitor.draw.randrange(400)
    answer = f"yes {number}"
    wish: dict[str, Any] = {"choice": [answer, "no"]}
    if visitor.draw.random() < 0.3:
        answer = f'{{"key{number}": 1}}'
        wish = {"json": {"type": "object", "properties": {f"key{number}": {"type": "integer"}}}}
    # The engine answers with the prompt.
    await visitor.send("POST", "/v1/completions", json={"prompt": answer, "max_tokens": 30, "structured_outputs": wish})


async def stored_response(visitor: Visitor) -> None:
    """A response that is stored, continued, read and, now and then, deleted."""
    name = await visitor.create("/v1/responses", {"input": "hey", "max_output_tokens": 16})
    body = {"input": "more", "max_output_tokens": 16, "previous_response_id": name, "stream": True}
    await visitor.send("POST", "/v1/responses", (200, 400), json=body)
    await visitor.send("GET", f"/v1/responses/{name}", (200, 404))
    await visitor.send("GET", f"/v1/responses/{name}/input_items", (200, 404))
    if visitor.draw.random() < 0.5:
        await visitor.send("DELETE", f"/v1/responses/{name}", (200, 404))


async def background(visitor: Visitor) -> None:
    name = await visitor.create("/v1/responses", {"input": "hey", "max_output_tokens": 40, "background": True})
    match visitor.draw.randrange(3):
        case 0:
            await visitor.send("POST", f"/v1/responses/{name}/cancel", (200, 400, 404))
        case 1:
            await visitor.send("GET", f"/v1/responses/{name}?stream=true", (200, 400, 404))
        case 2:
            await visitor.send("GET", f"/v1/responses/{name}", (200, 404))


async def conversation(visitor: Visitor) -> None:
    items = [{"role": "user", "content": "a"}]
    name = await visitor.create("/v1/conversations", {"items": items})
    path = f"/v1/conversations/{name}"
    await visitor.send("POST", f"{path}/items", (200, 404), json={"items": items})
    body = {"input": "x", "conversation": name, "max_output_tokens": 16}
    await visitor.send("POST", "/v1/responses", (200, 400, 404), json=body)
    await visitor.send("GET", f"{path}/items", (200, 404))
    if visitor.draw.random() < 0.5:
        await visitor.send("DELETE", path, (200, 404))


async def resumable(visitor: Visitor) -> None:
    """A stream that is cut and read to its end, left, or deleted."""
    body = {"prompt": "resumable", "max_tokens": 40, "stream": True, "resumable": True, "ignore_eos": True}
    place = ""
    async with visitor.request("POST", "/v1/completions", json=body) as answer:
        name = answer.headers.get("X-Eagre-Stream", "none")
        for _ in range(visitor.draw.randrange(12)):
            line = await answer.content.readline()
            if line.startswith(b"id: "):
                place = line[4:].strip().decode()
        answer.close()
    if name == "none":
        return
    chance = visitor.draw.random()
    if chance < 0.6:
        headers = {"Last-Event-ID": place} if place else {}
        await visitor.send("GET", f"/v1/streams/{name}", (200, 204, 404, 410), headers=headers)
    elif chance < 0.8:
        await visitor.send("DELETE", f"/v1/streams/{name}", (200, 404))


async def socket(visitor: Visitor) -> None:
    """Generations on a WebSocket, one of them cancelled; some sockets are left before the answers have ended."""
    visitor.num_sent += 1
    async with visitor.session.ws_connect(visitor.url.replace("http", "ws", 1) + "/v1/stream") as messages:
        running = {str(number) for number in range(visitor.draw.randint(1, 4))}
        for name in running:
            await messages.send_json({"type": "generate", "id": name, "prompt": "tide", "max_tokens": 4})
        if visitor.draw.random() < 0.3:
            await messages.send_json({"type": "cancel", "id": "0"})
        if visitor.draw.random() < _LEAVING:
            return
        async with asyncio.timeout(30):
            while running:
                message = await messages.receive_json()
                if message["type"] == "done":
                    running.discard(message["id"])
        visitor.answers["socket"] += 1


async def resumed_on_a_socket(visitor: Visitor) -> None:
    """A stream whose socket is cut; another socket reads it to its end."""
    address = visitor.url.replace("http", "ws", 1) + "/v1/stream"
    body = {"type": "generate", "id": "a", "prompt": "resumable", "max_tokens": 40, "resumable": True}
    visitor.num_sent += 2
    async with visitor.session.ws_connect(address) as messages, asyncio.timeout(30):
        await messages.send_json(body)
        message = await messages.receive_json()
        stream = message.get("stream")
        for _ in range(visitor.draw.randrange(8)):
            if message["type"] != "done":
                message = await messages.receive_json()
    if stream is None or message["type"] == "done":  # the server had no room for one more
        return
    async with visitor.session.ws_connect(address) as messages, asyncio.timeout(30):
        await messages.send_json({"type": "resume", "id": "b", "stream": stream, "after": message["place"]})
        while message["type"] not in ("done", "error"):
            message = await messages.receive_json()
    visitor.answers[f"socket resumed, {message['type']}"] += 1


async def lifecycle(visitor: Visitor) -> None:
    """A pause, or a sleep, of the engine, and its end, while the others' requests wait."""
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    begin, end = visitor.draw.choice([("pause", "resume"), ("sleep", "wake")])
    async with visitor.operating:
        # 409: it is busy, and does not sleep. What comes meanwhile has woken one that slept.
        await visitor.send("POST", f"/admin/{begin}", (200, 409), headers=headers, json={})
        await asyncio.sleep(0.02)
        await visitor.send("POST", f"/admin/{end}", headers=headers, json={})


async def admin(visitor: Visitor) -> None:
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    method, path, body = visitor.draw.choice(
        [("POST", "/admin/reset_prefix_cache", {}), ("POST", "/admin/abort", {"request_id": "none"}),
         ("GET", "/admin/usage", None), ("GET", "/admin/trace", None)]
    )  # fmt: skip
    await visitor.send(method, path, (200, 404, 409), headers=headers, json=body)


async def wrong_key(visitor: Visitor) -> None:
    headers = {"Authorization": f"Bearer wrong-{visitor.draw.randrange(10**9)}"}
    await visitor.send("POST", "/v1/completions", (401, 429), headers=headers, json={"prompt": "x"})
    await visitor.send("POST", "/admin/pause", (401, 403), json={})


async def wrong_request(visitor: Visitor) -> None:
    headers = {"Content-Type": "application/json"}
    body = visitor.draw.choice([_DEEP, b"nonsense", _LONG, b'{"prompt": "x", "temperature": 9}', b"{}"])
    await visitor.send("POST", "/v1/completions", (400,), data=body, headers=headers)
    await visitor.send("GET", f"/nowhere/{visitor.draw.randrange(10**9)}", (404,))


# How often each comes.
KINDS: dict[Callable[[Visitor], Awaitable[None]], float] = {
    completion: 6, chat: 5, anthropic: 2, ollama: 2, llama_cpp: 1, tokens: 3, looks: 2, grammar: 0.5,
    stored_response: 1.5, background: 1, conversation: 1, resumable: 2, socket: 2, resumed_on_a_socket: 0.5,
    lifecycle: 0.2, admin: 1, wrong_key: 1, wrong_request: 1,
}  # fmt: skip
