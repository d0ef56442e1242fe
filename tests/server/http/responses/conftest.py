"""A server whose model says what it is told to, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import EOS, FakeTextModel
from tests.server.conftest import RunningServer, StartServer
from tests.server.support.responses_judge import judge, parse_sse

TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}"
    "{% for c in m.tool_calls or [] %}!{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{{ m.tool_call_id or '' }}|{% endfor %}"
)

Ask = Callable[..., Awaitable[dict[str, Any]]]


def saying(text: str) -> Callable[..., list[int]]:
    return lambda *_: [*text.encode(), EOS]


@pytest.fixture
def start_saying(start_server: StartServer) -> Callable[..., Awaitable[RunningServer]]:
    """`await start_saying(text, **settings)`: a server whose model says it, or the prompt where it is None."""

    async def start(text: str | None = None, *, template: str = TEMPLATE, **settings: Any) -> RunningServer:
        engine = FakeEngineClient() if text is None else FakeEngineClient(respond=saying(text))
        return await start_server(engine, text_model=FakeTextModel(template), **settings)

    return start


@pytest.fixture
async def server(start_saying: Callable[..., Awaitable[RunningServer]]) -> RunningServer:
    """Its model repeats the prompt, which shows what it was told."""
    return await start_saying()


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


async def stream(server: RunningServer, **body: Any) -> list[dict[str, Any]]:
    """The events of a streamed response, judged."""
    events = parse_sse(await server.stream_bytes("/v1/responses", body))
    judge(events)
    return events


async def ask(server: RunningServer, **body: Any) -> dict[str, Any]:
    """A response as one JSON body."""
    status, response = await server.post("/v1/responses", body)
    assert status == 200, response
    return response


def text_of(response: dict[str, Any]) -> str:
    """All text of an answer's messages."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in messages for part in item["content"])
