"""Streams that tell how their request waits for its first token, on every route."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI

from engine.interface.types import PromptProgress, WaitStage
from server.serving import load_progress
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.serving.conftest import several
from tests.server.support.socket_client import open_socket, read_to_end, receive, send

CHAT = {"messages": [{"role": "user", "content": "tide"}]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "tide"},
    "/v1/chat/completions": CHAT,
    "/v1/messages": {**CHAT, "max_tokens": 20},
    "/v1/responses": {"input": "tide"},
}
# `/v1/responses` has no resumable streams; there, a response in the background is followed.
CALLS = [(path, more) for path in BODIES for more in ({}, {"resumable": True}) if not (more and "responses" in path)]
REPORTS = (
    PromptProgress(WaitStage.QUEUED, 2, 1.25, 9),
    PromptProgress(WaitStage.PROMPT, 0, 0.5, 9, 3, 6, 41.7),
)
TOLD = [
    {"index": 0, "stage": "queued", "queue_position": 2, "estimated_seconds": 1.25, "total": 9, "cache": 0,
     "processed": 0, "time_ms": 0},
    {"index": 0, "stage": "prompt", "queue_position": 0, "estimated_seconds": 0.5, "total": 9, "cache": 3,
     "processed": 6, "time_ms": 42},
]  # fmt: skip


@pytest.fixture
async def waiting(start_server: StartServer) -> AsyncIterator[RunningServer]:
    """A server whose engine gives a request the reports above, one after the other, and then its tokens."""
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)

    async def run() -> None:
        while True:
            await eventually(lambda: bool(engine.running))
            (stream,) = engine.running.values()
            for report in REPORTS if stream.wants_progress else ():
                await eventually(lambda: stream.is_awaited)  # noqa: B023 - it is awaited within this turn
                stream.report(report)
                await asyncio.sleep(0)
            await eventually(lambda: stream.is_awaited)  # noqa: B023
            engine.step(100)

    running = asyncio.create_task(run())
    yield server
    running.cancel()


def events_of(body: bytes) -> list[dict[str, Any]]:
    lines = [line for line in body.decode().split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def progress_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["prompt_progress"] for event in events if "prompt_progress" in event]


def assert_whole_at_last(told: list[dict[str, Any]]) -> None:
    """Just before the first token all of the prompt is processed."""
    last = told[-1]
    assert (last["stage"], last["estimated_seconds"]) == ("prompt", 0.0)
    assert last["processed"] == last["total"] > 0


@pytest.mark.parametrize(("path", "more"), CALLS)
async def test_it_is_told_before_the_answer_and_only_to_those_who_ask(
    waiting: RunningServer, path: str, more: dict[str, Any]
) -> None:
    asked = await waiting.stream_bytes(path, {**BODIES[path], **more, "return_progress": True})
    plain = await waiting.stream_bytes(path, {**BODIES[path], **more})
    *told, _ = progress_of(events_of(asked))
    # A resumable stream's reader gets the last of several reports that come together.
    assert told == (TOLD if not more else TOLD[: len(told)])
    assert_whole_at_last(progress_of(events_of(asked)))
    assert b"prompt_progress" not in plain
    assert len(events_of(asked)) == len(events_of(plain)) + len(told) + 1


async def test_resumable_events_are_numbered_as_if_nothing_had_been_told(waiting: RunningServer) -> None:
    body = {"prompt": "tide", "resumable": True, "return_progress": True}
    told = (await waiting.stream_bytes("/v1/completions", body)).decode().split("\n\n")
    assert not any("id: " in event for event in told if "prompt_progress" in event)
    numbered = [event.split("\n")[0].rpartition(":")[2] for event in told if event.startswith("id: ")]
    assert numbered == [str(number) for number in range(1, len(numbered) + 1)]


@pytest.mark.parametrize("more", [{}, {"resumable": True}], ids=["plain", "resumable"])
async def test_a_socket_tells_it_in_messages(waiting: RunningServer, more: dict[str, Any]) -> None:
    async with open_socket(waiting) as socket:
        await send(socket, type="generate", id="a", prompt="tide", return_progress=True, **more)
        messages = await read_to_end(socket, "a")
    kinds = [message["type"] for message in messages]
    *told, _ = progress_of(messages)
    assert kinds[: len(told) + 2] == ["start", "progress", *["progress"] * len(told)]
    assert "progress" not in kinds[len(told) + 2 :]
    assert told == (TOLD if not more else TOLD[: len(told)])
    assert_whole_at_last(progress_of(messages))
    assert all("place" not in message for message in messages if message["type"] == "progress")


async def test_the_official_clients_get_their_answers(waiting: RunningServer) -> None:
    extra = {"return_progress": True}
    async with AsyncOpenAI(base_url=waiting.url + "/v1", api_key="none", max_retries=0) as client:
        async with client.responses.stream(model="fake", input="tide", extra_body=extra) as responses:
            kinds = [event.type async for event in responses]
            assert (await responses.get_final_response()).output_text.startswith("user:tide")
        assert kinds[0] == "response.created"
        assert kinds.count("response.in_progress") == 1 + 3
        messages: Any = CHAT["messages"]
        async with client.chat.completions.stream(model="fake", messages=messages, extra_body=extra) as chat:
            text = (await chat.get_final_completion()).choices[0].message.content
        assert text is not None
        assert text.startswith("user:tide")


@pytest.mark.parametrize("path", BODIES)
async def test_it_needs_a_stream(server: RunningServer, path: str) -> None:
    status, body = await server.post(path, {**BODIES[path], "return_progress": True})
    assert status == 400
    assert body["error"]["message"] == "return_progress is true and stream is not; only a stream can tell of progress"


@asynccontextmanager
async def loading() -> AsyncIterator[tuple[Any, Callable[[], None]]]:
    """A server whose second model is loaded when the test says."""
    async with several("one two", models_max=1) as server:
        server.sources["two"].may_load.clear()
        yield server, server.sources["two"].may_load.set


@pytest.mark.parametrize(("path", "more"), CALLS)
async def test_who_waits_for_a_model_is_told_that_it_is_loading(
    monkeypatch: pytest.MonkeyPatch, path: str, more: dict[str, Any]
) -> None:
    monkeypatch.setattr(load_progress, "INTERVAL_S", 0.01)
    async with loading() as (server, load):
        body = {**BODIES[path], **more, "model": "two", "stream": True, "return_progress": True}
        async with server.http.post(server.url + path, json=body) as response:
            received = b""
            while b"starting" not in received:
                received += await response.content.readany()
            load()
            received += await response.read()
    told = progress_of(events_of(received))
    loading_reports = [report for report in told if report["stage"] == "loading"]
    assert loading_reports == told[: len(loading_reports)]
    assert loading_reports[-1]["detail"] == "starting"
    assert told[len(loading_reports) :] == told[-1:]
    assert_whole_at_last(told)
    assert b"two:" in received or b'"two' in received  # the answer


async def test_a_socket_is_told_that_its_model_is_loading() -> None:
    async with loading() as (server, load), open_socket(server) as socket:
        for client_id, more in (("a", {}), ("b", {"resumable": True})):
            await send(socket, type="generate", id=client_id, prompt="ab", model="two", return_progress=True, **more)
            message = await receive(socket)
            assert (message["type"], message["id"]) == ("progress", client_id)
            assert message["prompt_progress"]["stage"] == "loading"
        load()
        assert (await read_to_end(socket, "a"))[-1]["type"] == "done"
