"""Attacks on state that outlives a connection: stored and background responses, conversations, resumable streams."""

import asyncio
import contextlib
from typing import Any

import aiohttp
import orjson

from benchmarks.chaos.target import Target

_BUSY = (200, 429)
_RESPONSES = "/v1/responses"
_STREAM_HEADER = "X-Eagre-Stream"


async def stored_response(target: Target) -> None:
    """A response that is stored, continued, fetched, and deleted before, between or after the others."""
    attack, previous = "stored response", ""
    for _ in range(target.draw.randint(1, 4)):
        body: dict[str, Any] = {"input": target.prompt(), "max_output_tokens": target.draw.randint(1, 20)}
        if previous:
            body["previous_response_id"] = previous
        # The one before may have been deleted, or be too long by now.
        status, created = await target.ask(attack, "POST", _RESPONSES, (200, 400, 429), json=body)
        if status != 200:
            return
        previous = orjson.loads(created)["id"]
        for method, rest in (("GET", ""), ("GET", "/input_items"), ("DELETE", "")):
            if target.draw.random() < 0.4:
                await target.ask(attack, method, f"{_RESPONSES}/{previous}{rest}", (200, 404))


async def filled_store(target: Target) -> None:
    """Conversations of large items, so that the store is full and the oldest records go."""
    attack, text = "filled store", "salt " * target.draw.choice([10, 20_000, 100_000])
    items = [{"role": "user", "content": text}] * target.draw.randint(1, 4)
    status, created = await target.ask(attack, "POST", "/v1/conversations", _BUSY, json={"items": items})
    if status != 200:
        return
    conversation = orjson.loads(created)["id"]
    path = f"/v1/conversations/{conversation}"
    for _ in range(target.draw.randint(0, 6)):
        await target.ask(attack, "POST", f"{path}/items", (200, 404, 429), json={"items": items})
    body = {"input": "x", "conversation": conversation, "max_output_tokens": 4, "truncation": "auto"}
    await target.ask(attack, "POST", _RESPONSES, (200, 400, 404, 429), json=body)
    if target.draw.random() < 0.5:
        await target.ask(attack, "DELETE", path, (200, 404))


async def background_flood(target: Target) -> None:
    """Background responses; some are followed, cancelled or deleted."""
    attack = "background flood"
    for _ in range(target.draw.randint(1, 8)):
        body = {"input": target.prompt(), "max_output_tokens": target.draw.randint(1, 40), "background": True}
        status, created = await target.ask(attack, "POST", _RESPONSES, _BUSY, json=body)
        if status != 200:
            continue
        path = f"{_RESPONSES}/{orjson.loads(created)['id']}"
        match target.draw.randint(0, 3):
            case 0:
                # The store may have evicted it already, where this key has filled its share.
                await target.ask(attack, "DELETE", path, (200, 404))
            case 1:
                await target.ask(attack, "POST", f"{path}/cancel", (200, 404))
            case 2:
                # Its events may have made room for others already.
                async with target.session.get(target.url + path, params={"stream": "true"}) as response:
                    target.ledger.note_status(attack, response.status, (200, 400, 404))
                    await response.content.readany()
                    response.close()


async def forged_ids(target: Target) -> None:
    """Ids that do not exist or are malformed."""
    attack = "forged ids"
    name = target.draw.choice(["resp_", "conv_", "", "msg_"]) + target.draw.choice(
        ["0" * 32, target.draw.randbytes(16).hex(), "%00", "a" * 4000, "..", "%2e%2e%2fx", "💧"]
    )
    method, path = target.draw.choice(
        [
            ("GET", f"/v1/responses/{name}"), ("DELETE", f"/v1/responses/{name}"),
            ("POST", f"/v1/responses/{name}/cancel"), ("GET", f"/v1/responses/{name}/input_items"),
            ("GET", f"/v1/conversations/{name}"), ("DELETE", f"/v1/conversations/{name}"),
            ("GET", f"/v1/conversations/{name}/items/{name}"), ("GET", f"/v1/streams/{name}"),
            ("DELETE", f"/v1/streams/{name}"), ("POST", f"/v1/requests/{name}/cancel"),
        ]
    )  # fmt: skip
    await target.ask(attack, method, path, (400, 404, 405))
    body = {"input": [{"type": "item_reference", "id": name[:256]}] * target.draw.choice([1, 256, 300])}
    await target.ask(attack, "POST", _RESPONSES, (400, 429), json=body)


async def messages(target: Target) -> None:
    """Anthropic's messages, read, cut or wrong."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": target.prompt()}],
        "max_tokens": target.draw.randint(1, 40),
        "stream": target.draw.random() < 0.7,
    }
    wrong = target.draw.random() < 0.2
    if wrong:
        body |= target.draw.choice([{"max_tokens": 0}, {"messages": []}, {"messages": [1] * 9000}, {"tools": [{}]}])
    async with target.session.post(f"{target.url}/v1/messages", json=body) as response:
        target.ledger.note_status("messages", response.status, (400, 429) if wrong else _BUSY)
        if target.draw.random() < 0.5:
            await response.content.readany()
            response.close()
        else:
            text = await response.text()
            if body["stream"] and response.status == 200 and "event: message_stop" not in text:
                target.ledger.fail("messages: a stream ended without message_stop")


async def websocket_responses(target: Target) -> None:
    """A WebSocket with responses in several lanes, many of them queued, and messages of unknown types."""
    address = target.url.replace("http", "ws", 1) + _RESPONSES
    async with target.session.ws_connect(address, max_msg_size=1 << 24) as socket:
        for _ in range(target.draw.randint(1, 30)):
            body = {"input": target.prompt(), "max_output_tokens": target.draw.randint(1, 20), "store": False}
            message = {"type": "response.create", "stream_id": target.draw.choice("abc"), **body}
            await socket.send_json(message if target.draw.random() < 0.9 else {"type": "response.none"})
        num_events = target.draw.randint(0, 100)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(3):
                async for received in socket:
                    if received.type is not aiohttp.WSMsgType.TEXT:
                        break
                    target.ledger.note("websocket responses", orjson.loads(received.data)["type"].rpartition(".")[2])
                    num_events -= 1
                    if num_events < 0:
                        break


async def resumed_by_many(target: Target) -> None:
    """A resumable stream that is cut, and then read by several clients from two positions: all get the same text."""
    body = target.body(resumable=True, n=target.draw.choice([1, 1, 3]), max_tokens=target.draw.randint(5, 40))
    stream, whole = await _read(target, "POST", "/v1/completions", json=body, most=target.draw.randint(0, 6))
    if stream is None:
        return
    num_left = target.draw.random()
    if num_left < 0.3:
        target.ledger.note("resumed by many", "never resumed")
        return
    if num_left < 0.45:
        await target.ask("resumed by many", "DELETE", f"/v1/streams/{stream}", (200, 404))
        return
    place = whole[-1][0] if whole else None
    readers = [_read(target, "GET", f"/v1/streams/{stream}") for _ in range(target.draw.randint(1, 5))]
    headers = {} if place is None else {"Last-Event-ID": place}
    readers.append(_read(target, "GET", f"/v1/streams/{stream}", headers=headers))
    *others, rest = [events for _, events in await asyncio.gather(*readers)]
    texts = {_texts(events) for events in others if events}
    if rest:
        texts.add(_texts([*whole, *rest] if place is not None else rest))
    if len(texts) > 1:
        target.ledger.fail(f"resumed by many: readers of one stream got {texts!r}")
    target.ledger.note("resumed by many", "compared")


async def _read(
    target: Target, method: str, path: str, *, most: int = 1 << 30, **options: Any
) -> tuple[str | None, list[tuple[str, bytes]]]:
    """A stream's id, and its events with their positions, `most` at most."""
    events: list[tuple[str, bytes]] = []
    async with target.session.request(method, target.url + path, **options) as response:
        target.ledger.note_status("resumed by many", response.status, (200, 204, 404, 410, 429))
        stream = response.headers.get(_STREAM_HEADER)
        if response.status != 200 or stream in (None, "none"):
            response.close()
            return None, []
        place = ""
        while len(events) < most and (line := await response.content.readline()):
            if line.startswith(b"id: "):
                place = line[4:].strip().decode()
            elif line.startswith(b"data: ") and place:
                events.append((place, line[6:].strip()))
        response.close()
    return stream, events


def _texts(events: list[tuple[str, bytes]]) -> tuple[tuple[int, str], ...]:
    texts: dict[int, str] = {}
    for _, data in events:
        if data != b"[DONE]":
            for choice in orjson.loads(data).get("choices", ()):
                texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return tuple(sorted(texts.items()))


async def queries(target: Target) -> None:
    """Tokenization of long texts, and embeddings that the model may refuse."""
    text = target.prompt() * target.draw.choice([1, 50, 500])
    path, body = target.draw.choice(
        [("/tokenize", {"prompt": text}), ("/v1/embeddings", {"input": [text[:2000]] * 4}),
         ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": text}]})]
    )  # fmt: skip
    await target.ask("queries", "POST", path, (200, 400, 429), json=body)
