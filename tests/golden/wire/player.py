"""Plays recorded requests against the application over the fake engine, and notes everything that a client sees.

A case is `{"name", "setup", "base", "path", "exchanges"}`. Its setup describes one server and its engine (`start`);
each exchange is a request, sent one after the other: an HTTP request (`_play_http`) or a script of one WebSocket
(`_play_socket`). What the exchanges have in common may stand beside them: the base is a part of every JSON body, and
the path is that of all HTTP requests. Only the name and the exchanges are never left out.
The notes hold the raw bytes of bodies, event streams and messages, as text. Only what can never be the same twice is
replaced: ids that the server makes, times, the version, and the values of metrics.

The engine takes a step only when every token of the last one has been read. Deltas never merge by chance then, and
the bytes of a stream are the same each time.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any

import aiohttp
from aiohttp import WSMsgType

from engine.interface.types import FinishReason
from sampling.host.params import SamplingParams
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually

# Of the machine, of the moment, or told by the body.
_UNTOLD_HEADERS = frozenset({"date", "server", "content-length", "sec-websocket-accept", "process-start-time-unix"})
# An answer's headers are noted where they are others than these.
_PLAIN_HEADERS = {"Content-Type": "application/json", "X-Request-ID": "<id>"}
# Short, for the sake of the recording's size: the beginning of the role, the text and the name of each message.
# It has a place for `tools`, as most have, and writes none of them.
_CHAT_TEMPLATE = "{# tools #}{% for m in messages %}{{ m.role[:1] }}{{ m.content }}{{ m.name }}{% endfor %}"
_DEFAULTS = SamplingParams()
_MADE_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
_CREATED = re.compile(r'"created":\d{10}(?!\d)')
_VERSION = re.compile(r'"version":"[^"]*"')
_FINGERPRINT = re.compile(r'"system_fingerprint":"[^"]*"')
_METRIC_VALUE = re.compile(r"(?m)^([a-z_]+(?:\{[^}]*\})?) \S+$")
_METRIC_HELP = re.compile(r"(?m)^# HELP .*\n")


async def play(case: Mapping[str, Any], start_server: StartServer) -> list[dict[str, Any]]:
    """The answer to each of the case's exchanges."""
    setup = case.get("setup", {})
    server = await start(setup, start_server)
    async with asyncio.timeout(PATIENCE_S), _paced(server, setup):
        return [await _play(_whole(exchange, case), server) for exchange in case["exchanges"]]


def _whole(exchange: Mapping[str, Any], case: Mapping[str, Any]) -> Mapping[str, Any]:
    """`exchange` with what its case has for all of them."""
    base = case.get("base", {})
    if "script" not in exchange:
        exchange = {"path": case["path"], **exchange} if "path" in case else exchange
        return {**exchange, "json": {**base, **exchange["json"]}} if "json" in exchange else exchange
    script = [
        {"send": {**base, **action["send"]}} if isinstance(action.get("send"), dict) else action
        for action in exchange["script"]
    ]
    return {**exchange, "script": script}


async def start(setup: Mapping[str, Any], start_server: StartServer) -> RunningServer:
    """The server that `setup` describes.

    Its keys, each of which may be left out: `settings` of the server; `state` (ready, loading, draining, failed,
    dead); `engine`, keywords of the fake; `says`, what each answer is instead of its prompt; `crashes`, whether the
    engine raises on submission; `chat_template`; `num_cached_tokens`; `is_manual`, whether steps are taken only by
    the script of a WebSocket; `after`, `{"steps": N, "do": …}`, what happens to the running requests once N steps
    have been read.
    """
    options = dict(setup.get("engine", {}))
    if "says" in setup:
        options["respond"] = lambda *_: setup["says"].encode()
    if setup.get("crashes"):
        options["respond"] = _crash
    engine = FakeEngineClient(is_manual=True, **options)
    engine.num_cached_tokens = setup.get("num_cached_tokens", 0)
    state = setup.get("state", "ready")
    server = await start_server(
        engine,
        text_model=FakeTextModel(setup.get("chat_template", _CHAT_TEMPLATE)),
        is_open=state != "loading",
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in setup.get("settings", {}).items()
        },
    )
    match state:
        case "draining":
            server.served.start_draining()
        case "failed":
            engine.fail("the device is gone")
        case "dead":
            engine.is_alive = False
    return server


def _crash(*_: object) -> list[int]:
    raise LookupError("what nobody outside shall read")


@asynccontextmanager
async def _paced(server: RunningServer, setup: Mapping[str, Any]) -> AsyncIterator[None]:
    if setup.get("is_manual"):
        yield
        return
    pacing = asyncio.create_task(_pace(server, setup.get("after")))
    try:
        yield
    finally:
        pacing.cancel()
        await asyncio.gather(pacing, return_exceptions=True)


async def _pace(server: RunningServer, after: Mapping[str, Any] | None) -> None:
    engine = server.engine
    while True:
        running = list(engine.running.values())
        if running and all(stream.num_events_read == stream.num_generated for stream in running):
            if after is not None and engine.num_steps == after["steps"]:
                _HAPPENINGS[after["do"]](server)
            else:
                engine.step()
        await asyncio.sleep(0 if running else 0.001)


def _fail(server: RunningServer) -> None:
    server.engine.fail("the device is gone")


def _drain(server: RunningServer) -> None:
    server.served.start_draining()
    server.served.abort_all()


def _finish_with(reason: FinishReason, error: str | None = None) -> Callable[[RunningServer], None]:
    def finish(server: RunningServer) -> None:
        for stream in list(server.engine.running.values()):
            stream.finish(reason, error)

    return finish


_HAPPENINGS: Mapping[str, Callable[[RunningServer], None]] = {
    "fail": _fail,
    "drain": _drain,
    "time out": _finish_with(FinishReason.TIMEOUT),
    "abort": _finish_with(FinishReason.ABORT),
    "error": _finish_with(FinishReason.ERROR, "this request cannot go on"),
    "error without words": _finish_with(FinishReason.ERROR),
}


async def _play(exchange: Mapping[str, Any], server: RunningServer) -> dict[str, Any]:
    num_before = len(server.engine.submitted)
    options_before = set(server.engine.options)
    answer = await (_play_socket if "script" in exchange else _play_http)(exchange, server)
    submitted = server.engine.submitted[num_before:]
    if submitted:
        options = [value for name, value in server.engine.options.items() if name not in options_before]
        answer["told"] = [
            _told(stream.prompt_token_ids, stream.params, stream.matcher is not None) for stream in submitted
        ]
        if any(any(values.values()) for values in options):
            answer["options"] = options
    return answer


def _told(prompt_token_ids: Any, params: SamplingParams, has_matcher: bool) -> dict[str, Any]:
    """What the engine was asked for: the prompt, and what differs from the sampler's defaults."""
    given = {
        field.name: getattr(params, field.name)
        for field in fields(params)
        if getattr(params, field.name) != getattr(_DEFAULTS, field.name)
    }
    prompt = bytes(prompt_token_ids).decode("latin-1") if max(prompt_token_ids) < 256 else list(prompt_token_ids)
    told = {"prompt": prompt, "params": json.loads(json.dumps(given))}
    return {**told, "has_matcher": True} if has_matcher else told


async def _play_http(exchange: Mapping[str, Any], server: RunningServer) -> dict[str, Any]:
    """Keys: `method`, `path`, `headers`; the body as `json`, `text` or `base64`, with `gzip: true` compressed.

    `shows: "type"` notes no more of the answer than its status and its content type.
    """
    method, path = exchange.get("method", "POST"), exchange["path"]
    async with server.http.request(
        method,
        server.url + path,
        data=_body_of(exchange),
        headers=exchange.get("headers", {}),
        allow_redirects=False,
        auto_decompress=False,
    ) as response:
        data = await response.read()
        # A page's size when compressed is the compressor's affair. An answer to HEAD says so too, and has no body.
        is_compressed = response.headers.get("Content-Encoding") == "gzip" and data
        body = (gzip.decompress(data) if is_compressed else data).decode()
        if exchange.get("shows") == "type":
            return {"status": response.status, "content_type": response.headers.get("Content-Type")}
        answer: dict[str, Any] = {"status": response.status, "body": _fold(_normalise(body, path))}
        headers = _headers_of(response)
        return answer if headers == _PLAIN_HEADERS else {**answer, "headers": headers}


def _body_of(exchange: Mapping[str, Any]) -> bytes | None:
    body = None
    if "json" in exchange:
        body = json.dumps(exchange["json"]).encode()
    elif "text" in exchange:
        body = exchange["text"].encode()
    elif "base64" in exchange:
        body = base64.b64decode(exchange["base64"])
    return gzip.compress(body, mtime=0) if exchange.get("gzip") and body is not None else body


def _headers_of(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {
        name: _MADE_ID.sub("<id>", value)
        for name, value in sorted(response.headers.items())
        if name.lower() not in _UNTOLD_HEADERS
    }


def _normalise(text: str, path: str = "") -> str:
    text = _CREATED.sub('"created":0', _MADE_ID.sub("<id>", text))
    text = _FINGERPRINT.sub('"system_fingerprint":""', text)
    if path == "/version":
        text = _VERSION.sub('"version":""', text)
    if path == "/metrics":
        text = _METRIC_VALUE.sub(r"\1 0", _METRIC_HELP.sub("", text))
    return text


def _fold(body: str) -> str | list[str]:
    """An event stream as the head of its first chunk and what stands between the repeats of it: joined by it, the body.

    All chunks of an answer begin with the same id, object, time and model.
    """
    begin, mark = body.find("data: {"), '"choices":'
    end = body.find(mark, begin)
    if begin < 0 or end < 0:
        return body
    head = body[begin : end + len(mark)]
    return [head, *body.split(head)]


async def _play_socket(exchange: Mapping[str, Any], server: RunningServer) -> dict[str, Any]:
    """Keys: `script`, a list of actions with one key each; `headers` of the handshake; `shows`, ids to note alone.

    Actions: `send` (an object, or text as it is), `send_binary` (base64), `until` (an id: reads to its terminal
    message), `read` (so many messages), `step` (the engine, so often), `wait_running` (so many requests),
    `fail` (the engine). Messages are noted by the id that they name, because the order between the generations
    of one socket is a matter of the moment.
    """
    headers = {name: value.replace("<server>", server.url) for name, value in exchange.get("headers", {}).items()}
    try:
        async with server.http.ws_connect(server.url + exchange.get("path", "/v1/stream"), headers=headers) as socket:
            messages, close_code = await _follow(exchange["script"], socket, server)
    except aiohttp.WSServerHandshakeError as error:
        return {"handshake": error.status}
    shown = exchange.get("shows")
    if shown is not None:
        messages = {json.dumps(client_id): messages[json.dumps(client_id)] for client_id in shown}
    answer: dict[str, Any] = {"messages": messages}
    return answer if close_code is None else {**answer, "close_code": close_code}


async def _follow(
    script: list[dict[str, Any]], socket: aiohttp.ClientWebSocketResponse, server: RunningServer
) -> tuple[dict[str, list[str]], int | None]:
    messages: dict[str, list[str]] = {}
    ended: dict[str, int] = {}  # terminal messages of an id that no `until` has asked for yet
    close_code: int | None = None

    async def read() -> None:
        nonlocal close_code
        message = await socket.receive()
        if message.type is not WSMsgType.TEXT:
            close_code = socket.close_code
            return
        parsed = json.loads(message.data)
        client_id = json.dumps(parsed["id"])
        messages.setdefault(client_id, []).append(_normalise(message.data))
        if parsed["type"] in ("done", "error"):
            ended[client_id] = ended.get(client_id, 0) + 1

    async def read_until(client_id: object) -> None:
        name = json.dumps(client_id)
        while not ended.get(name) and close_code is None:
            await read()
        ended[name] = ended.get(name, 0) - 1

    async def read_all(count: int) -> None:
        for _ in range(count):
            await read()

    async def send(frame: object) -> None:
        await socket.send_str(frame if isinstance(frame, str) else json.dumps(frame))

    async def send_binary(data: str) -> None:
        await socket.send_bytes(base64.b64decode(data))

    async def wait_running(count: int) -> None:
        await eventually(lambda: len(server.engine.running) == count)

    async def step(count: int) -> None:
        """One after the other, each read before the next."""
        for _ in range(count):
            server.engine.step()
            await eventually(
                lambda: all(stream.num_events_read == stream.num_generated for stream in server.engine.running.values())
            )

    async def fail(message: str) -> None:
        server.engine.fail(message)

    actions: Mapping[str, Callable[[Any], Awaitable[None]]] = {
        "send": send,
        "send_binary": send_binary,
        "until": read_until,
        "read": read_all,
        "step": step,
        "wait_running": wait_running,
        "fail": fail,
    }
    for action in script:
        ((kind, value),) = action.items()
        await actions[kind](value)
    return messages, close_code
