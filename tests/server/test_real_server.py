"""The application over the real engine and the default model: what clients get, and what is left when they go."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest
from openai import AsyncOpenAI
from openai.types import CompletionUsage
from websockets.asyncio.client import ClientConnection, connect

from engine.backends.native import library
from engine.client import EngineClient
from engine.engine import Engine
from server.cli.client.sse_parser import SseParser
from server.cli.serve import drain
from server.text.text_model import TextModel
from tests.patience import PATIENCE_S
from tests.server.conftest import eventually
from tests.server.support.real_server import MAX_BODY_BYTES, RealServer, serving
from tests.server.support.sse_reader import SseReader, chunks_of, read_all

MODEL = "smollm2-135m-instruct"
STORY = "Once upon a time, in a village by the sea,"
MESSAGES: list[Any] = [{"role": "user", "content": "Name three colours of the sea."}]


@pytest.fixture
async def server(real_engine: Engine, text_model: TextModel) -> AsyncIterator[RealServer]:
    """After each test nothing runs, no page is lost, and nothing was compiled."""
    engine = EngineClient(real_engine)
    engine.start(asyncio.get_running_loop())
    before = engine.stats()
    async with serving(engine, text_model) as server:
        yield server
        await server.wait_idle()
    stats = engine.stats()
    engine.shutdown()
    assert (stats.num_running, stats.num_waiting, stats.num_active_pages) == (0, 0, 0)
    assert stats.num_free_pages + stats.num_cached_pages + stats.num_active_pages == stats.num_pages
    assert stats.compiles_after_ready == before.compiles_after_ready


@pytest.fixture
async def client(server: RealServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def counts(usage: CompletionUsage | None) -> tuple[int, int]:
    """Tokens of the prompt and of the answer; how many were cached depends on who came first."""
    assert usage is not None
    return usage.prompt_tokens, usage.completion_tokens


async def test_completions_with_the_official_client(client: AsyncOpenAI, text_model: TextModel) -> None:
    async def stream() -> tuple[str, list[str], tuple[int, int]]:
        text, finish_reasons, usage = "", list[str](), None
        async for chunk in await client.completions.create(
            model=MODEL, prompt=STORY, max_tokens=16, temperature=0, stream=True, stream_options={"include_usage": True}
        ):
            for choice in chunk.choices:
                text += choice.text
                finish_reasons += filter(None, [cast(str | None, choice.finish_reason)])
            usage = chunk.usage or usage
        return text, finish_reasons, counts(usage)

    whole, streamed = await asyncio.gather(
        client.completions.create(model=MODEL, prompt=STORY, max_tokens=16, temperature=0), stream()
    )
    assert counts(whole.usage) == (text_model.tokenizer.count(STORY, add_special_tokens=True), 16)
    assert whole.choices[0].finish_reason == "length"
    assert text_model.tokenizer.count(whole.choices[0].text, add_special_tokens=False) == 16
    assert streamed == (whole.choices[0].text, ["length"], counts(whole.usage))


async def test_chat_with_the_official_client(client: AsyncOpenAI) -> None:
    async def stream() -> tuple[str, list[str], tuple[int, int]]:
        text, roles, usage = "", list[str](), None
        async for chunk in await client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            max_tokens=100,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        ):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                roles += filter(None, [choice.delta.role])
            usage = chunk.usage or usage
        return text, roles, counts(usage)

    whole, streamed = await asyncio.gather(
        client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=100, temperature=0), stream()
    )
    assert whole.choices[0].finish_reason == "stop"
    assert whole.choices[0].message.content
    assert "<|im_end|>" not in whole.choices[0].message.content
    assert streamed == (whole.choices[0].message.content, ["assistant"], counts(whole.usage))


async def test_a_seed_gives_the_same_answer_alone_and_in_company(client: AsyncOpenAI) -> None:
    async def ask(seed: int) -> str:
        answer = await client.completions.create(model=MODEL, prompt=STORY, max_tokens=8, temperature=0.9, seed=seed)
        return answer.choices[0].text

    alone = await ask(1)
    together = await asyncio.gather(*(ask(seed) for seed in (1, 2, 3)))
    assert together[0] == alone
    assert len(set(together)) == 3


async def test_stop_strings(server: RealServer, text_model: TextModel) -> None:
    whole = await server.complete(STORY, max_tokens=16)
    stop = whole[len(whole) // 2 : len(whole) // 2 + 7]  # neither where a token begins nor where one ends
    expected = whole[: whole.index(stop)]
    body = {"prompt": STORY, "max_tokens": 100, "temperature": 0, "stop": ["never seen", stop]}
    (status, answer), data = await asyncio.gather(
        server.post("/v1/completions", body), server.stream_bytes("/v1/completions", body)
    )
    assert status == 200
    assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == (expected, "stop")
    num_tokens = text_model.tokenizer.count(expected + stop, add_special_tokens=False)
    assert num_tokens <= answer["usage"]["completion_tokens"] <= num_tokens + 1
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks_of(data)) == expected


async def send(socket: ClientConnection, **frame: Any) -> None:
    await socket.send(json.dumps(frame))


async def receive(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        message: dict[str, Any] = json.loads(await socket.recv(decode=True))
    return message


def open_socket(server: RealServer) -> connect:
    return connect(server.url.replace("http", "ws", 1) + "/v1/stream", proxy=None)


async def test_twenty_generations_on_one_socket_and_five_cancelled(server: RealServer) -> None:
    prompts = {f"g{number}": f"{STORY} {number % 5} fishermen" for number in range(20)}
    cancelled = {f"g{number}" for number in (0, 3, 7, 12, 19)}  # some run, some still wait: there are 8 slots
    kept = [client_id for client_id in prompts if client_id not in cancelled]
    texts: defaultdict[str, str] = defaultdict(str)
    token_ids: defaultdict[str, list[int]] = defaultdict(list)
    ends: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    async with open_socket(server) as socket:
        for client_id, prompt in prompts.items():
            max_tokens = 900 if client_id in cancelled else 6
            await send(
                socket, type="generate", id=client_id, prompt=prompt, max_tokens=max_tokens, temperature=0,
                ignore_eos=True,
            )  # fmt: skip

        async def read_message() -> None:
            message = await receive(socket)
            if message["type"] == "delta":
                assert not ends[message["id"]], "a delta after the end"
                texts[message["id"]] += message["text"]
                token_ids[message["id"]] += message["token_ids"]
            elif message["type"] != "start":
                ends[message["id"]].append(message)

        while not (texts["g0"] and texts["g3"]):
            await read_message()
        for client_id in cancelled:
            await send(socket, type="cancel", id=client_id)
        while sum(map(bool, ends.values())) < len(prompts):
            await read_message()
        # Whatever else was on its way would come before this one's end.
        await send(socket, type="generate", id="last", prompt="x", max_tokens=1)
        while not ends["last"]:
            await read_message()
    assert {client_id: len(messages) for client_id, messages in ends.items()} == dict.fromkeys([*prompts, "last"], 1)
    for client_id in prompts:
        (end,) = ends[client_id]
        assert end["type"] == "done"
        assert end["finish_reason"] == ("abort" if client_id in cancelled else "length"), client_id
        assert end["usage"]["completion_tokens"] == len(token_ids[client_id])
    different = sorted(set(prompts.values()))
    answers = await asyncio.gather(*(server.complete(prompt, max_tokens=6, ignore_eos=True) for prompt in different))
    expected = dict(zip(different, answers, strict=True))
    assert {client_id: texts[client_id] for client_id in kept} == {
        client_id: expected[prompts[client_id]] for client_id in kept
    }


async def test_the_bytes_give_the_same_events_whatever_the_split(server: RealServer) -> None:
    body = {"prompt": "🌊 🐟 é 🌊 🐟 é 🌊 🐟", "max_tokens": 8, "temperature": 0}
    data = await server.stream_bytes("/v1/completions", body)
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks_of(data))
    assert text == await server.complete(body["prompt"], max_tokens=8)
    assert not text.isascii(), "the model goes on with characters of several bytes"
    whole = read_all(data)
    whole_data = [record.text.encode() for record in whole if record.kind == "data"]
    for offset in range(len(data) + 1):
        reader, parser = SseReader(), SseParser()
        assert reader.feed(data[:offset]) + reader.feed(data[offset:]) == whole
        assert parser.feed(data[:offset]) + parser.feed(data[offset:]) == whole_data


async def leave_in_a_stream(server: RealServer) -> None:
    """Closes the connection after the first tokens."""
    body = {"prompt": STORY, "max_tokens": 900, "ignore_eos": True, "stream": True}
    async with server.http.post(server.url + "/v1/completions", json=body) as response:
        reader = SseReader()
        while not any(record.kind == "data" for record in reader.feed(await response.content.readany())):
            pass
        assert server.engine.stats().num_running == 1
        response.close()


async def leave_in_a_request(server: RealServer) -> None:
    """Closes the connection while the answers, three of which must wait for a slot, are made."""
    body = {"prompt": STORY, "max_tokens": 900, "ignore_eos": True, "n": 11}
    asking = asyncio.create_task(server.post("/v1/completions", body))
    await eventually(lambda: server.engine.stats().num_running == 8)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def leave_a_socket(server: RealServer) -> None:
    async with open_socket(server) as socket:
        for number in range(10):
            await send(socket, type="generate", id=str(number), prompt=STORY, max_tokens=900, ignore_eos=True)
        await eventually(lambda: server.engine.stats().num_running == 8)
        socket.transport.abort()


@pytest.mark.parametrize("leave", [leave_in_a_stream, leave_in_a_request, leave_a_socket])
async def test_a_disconnect_aborts(server: RealServer, leave: Callable[[RealServer], Awaitable[None]]) -> None:
    num_tokens = server.engine.stats().num_generation_tokens
    await leave(server)
    await server.wait_idle()
    stats = server.engine.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.num_generation_tokens - num_tokens < 900  # far from what was asked for


# body or frame, status, param, code, words of the message
BAD_BODIES: list[tuple[Any, int, str | None, str, str]] = [
    (b'{"prompt": ', 400, None, "invalid_json", "not valid JSON"),
    ([1], 400, None, "invalid_type", "must be an object"),
    ({"prompt": 5}, 400, "prompt", "invalid_value", "prompt is 5"),
    ({"prompt": "a", "temperature": "hot"}, 400, "temperature", "invalid_value", "must be a number"),
    ({"prompt": "a", "max_tokens": 1.5}, 400, "max_tokens", "invalid_value", "must be an integer"),
    ({"prompt": "a", "model": "gpt-4"}, 404, "model", "model_not_found", MODEL),
    ({"prompt": "a", "temprature": 1}, 400, "temprature", "unknown_parameter", "temperature"),
    ({"prompt": "a", "temperature": 9}, 400, "temperature", "invalid_value", "2"),
    ({"prompt": "a", "top_p": 0}, 400, "top_p", "invalid_value", "top_p"),
    ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "invalid_value", "at least 1"),
    ({"prompt": "a", "max_tokens": 5000}, 400, "max_tokens", "context_length_exceeded", "1024"),
    ({"prompt": [1] * 1024}, 400, "prompt", "context_length_exceeded", "1024 tokens"),
    ({"prompt": ""}, 400, "prompt", "invalid_value", "empty"),
    ({"prompt": []}, 400, "prompt", "invalid_value", "empty"),
    ({"prompt": [49152]}, 400, "prompt", "invalid_value", "49151"),
    ({"prompt": [-1]}, 400, "prompt", "invalid_value", "token id -1"),
    ({"prompt": "a", "stop_token_ids": [49152]}, 400, "stop_token_ids", "invalid_value", "49151"),
    ({"prompt": "x" * MAX_BODY_BYTES}, 413, None, "body_too_large", f"{MAX_BODY_BYTES} bytes"),
]
BAD_FRAMES: list[tuple[Any, str | None, str, str]] = [
    # what is sent, the error's id, code, words of the message
    (b"{", None, "invalid_json", "not valid JSON"),
    ({"type": "cancel", "id": "nobody"}, "nobody", "unknown_id", '"nobody"'),
    ({"type": "generate", "id": "running", "prompt": "x"}, "running", "duplicate_id", '"running"'),
    ({"type": "generate", "id": "a", "prompt": "x" * MAX_BODY_BYTES}, None, "body_too_large", f"{MAX_BODY_BYTES}"),
    ({"type": "generate", "id": "a", "prompt": [1] * 1024}, "a", "context_length_exceeded", "1024 tokens"),
]


def encode(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


async def send_bad_bodies(server: RealServer) -> None:
    for body, status, param, code, words in BAD_BODIES:
        got, answer = await server.post_raw("/v1/completions", encode(body))
        error = answer["error"]
        assert (got, error["param"], error["code"]) == (status, param, code), error
        assert words in error["message"]
    status, answer = await server.post("/v1/chat/completions", {"messages": []})
    assert (status, answer["error"]["param"]) == (400, "messages")


async def test_bad_input_disturbs_nobody(server: RealServer) -> None:
    long = {"max_tokens": 16, "ignore_eos": True}
    expected = await server.complete(STORY, **long)
    body = {"prompt": STORY, "temperature": 0, "stream": True, **long}
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="running", prompt=STORY, temperature=0, **long)
        assert (await receive(socket))["type"] == "start"
        async with server.http.post(server.url + "/v1/completions", json=body) as response:
            streaming = asyncio.create_task(response.read())
            errors: list[dict[str, Any]] = []
            text = ""
            for frame, *_ in BAD_FRAMES:
                await socket.send(encode(frame).decode())
            while not streaming.done():  # once at least, for as long as the stream runs
                await send_bad_bodies(server)
                await asyncio.sleep(0.1)  # or the engine's thread hardly gets its turn
            streamed = "".join(chunk["choices"][0]["text"] for chunk in chunks_of(await streaming))
        while True:
            message = await receive(socket)
            if message["type"] == "done":
                break
            if message["type"] == "error":
                errors.append(message)
            else:
                text += message["text"]
    assert streamed == text == expected
    assert (message["id"], message["finish_reason"]) == ("running", "length")
    errors_by_code = {error["error"]["code"]: error for error in errors}
    assert len(errors) == len(errors_by_code) == len(BAD_FRAMES)
    for _, client_id, code, words in BAD_FRAMES:
        assert errors_by_code[code]["id"] == client_id
        assert words in errors_by_code[code]["error"]["message"]


async def test_drain_lets_a_stream_end(server: RealServer, text_model: TextModel) -> None:
    expected = await server.complete(STORY, max_tokens=16, ignore_eos=True)
    body = {"prompt": STORY, "temperature": 0, "max_tokens": 16, "ignore_eos": True, "stream": True}
    async with serving(server.engine, text_model) as leaving:
        async with leaving.http.post(leaving.url + "/v1/completions", json=body) as response:
            draining = asyncio.create_task(drain(leaving.served, 30))
            await asyncio.sleep(0)
            status, answer = await leaving.post("/v1/completions", {"prompt": "x"})
            assert (status, answer["error"]["code"]) == (503, "draining")
            assert (await leaving.get("/readiness"))[0] == 503
            chunks = chunks_of(await response.read())
        await draining
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_at_the_deadline_of_a_drain_a_stream_ends_with_abort(server: RealServer, text_model: TextModel) -> None:
    body = {"prompt": STORY, "max_tokens": 900, "ignore_eos": True, "stream": True}
    async with serving(server.engine, text_model) as leaving:
        async with leaving.http.post(leaving.url + "/v1/completions", json=body) as response:
            await drain(leaving.served, 0.05)
            assert chunks_of(await response.read())[-1]["choices"][0]["finish_reason"] == "abort"
        assert leaving.served.num_generations == 0


async def test_health_and_models_tell_of_the_real_engine(server: RealServer) -> None:
    await server.complete(STORY, max_tokens=2)
    await server.wait_idle()
    _, health = await server.get("/health")
    stats = health["stats"]
    assert stats["num_free_pages"] + stats["num_cached_pages"] + stats["num_active_pages"] == stats["num_pages"] == 599
    _, model = await server.get(f"/v1/models/{MODEL}")
    assert (model["architecture"], model["max_model_len"], model["dtype"]) == ("llama", 1024, "int4+int8")
    assert model["num_parameters"] == 134_515_008
    assert 0.5 * model["num_parameters"] < model["weight_bytes"] < 1.5 * model["num_parameters"]
    scale_bytes = 4 if library.page_type() == "int16" else 0  # beside the vector of a token's head
    assert model["cache_bytes"] == 600 * 32 * 30 * 2 * 3 * (64 * 2 + scale_bytes)  # tokens, layers, keys and values


@pytest.mark.parametrize("seed", [None, 7])
async def test_the_answers_of_one_request_differ(server: RealServer, seed: int | None) -> None:
    """Each draws with a seed of its own; with a seed they are the same ones every time."""

    async def texts() -> list[str]:
        body = {"prompt": STORY, "max_tokens": 16, "temperature": 1, "n": 4, "seed": seed}
        status, answer = await server.post("/v1/completions", body)
        assert status == 200, answer
        return [choice["text"] for choice in answer["choices"]]

    first, again = await texts(), await texts()
    assert len(set(first)) == 4
    assert (first == again) == (seed is not None)


async def test_a_stream_tells_how_far_its_prompt_is(server: RealServer) -> None:
    body = {"prompt": STORY * 40, "max_tokens": 2, "return_progress": True, "stream_options": {"include_usage": True}}
    chunks = chunks_of(await server.stream_bytes("/v1/completions", body))
    told = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert told
    assert [chunk for chunk in chunks[: len(told)] if "prompt_progress" not in chunk] == []
    assert {report["total"] for report in told} == {chunks[-1]["usage"]["prompt_tokens"]}
    processed = [report["processed"] for report in told]
    assert processed == sorted(processed)
    assert {report["queue_position"] for report in told} == {0}
