"""What never changes between the chunks of a stream is encoded once; the chunks are as if it were not."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import StartServer

TEXT = 'a"b\\\n\ue000é🌊z'
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "x"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
]


@pytest.mark.parametrize(("path", "body"), BODIES, ids=["completions", "chat"])
@pytest.mark.parametrize(
    "options",
    [{}, {"n": 2}, {"return_token_ids": True}, {"stream_options": {"include_usage": True}}],
    ids=["plain", "two answers", "token ids", "usage"],
)
async def test_chunks_differ_in_their_texts_alone(
    start_server: StartServer, path: str, body: dict[str, Any], options: dict[str, Any]
) -> None:
    server = await start_server(FakeEngineClient(respond=lambda *_: list(TEXT.encode())))
    events = (await server.stream_bytes(path, {**body, **options, "max_tokens": 50})).split(b"\n\n")
    data = [event.removeprefix(b"data: ") for event in events if event.startswith(b"data: {")]
    chunks = [orjson.loads(chunk) for chunk in data]
    assert [orjson.dumps(chunk) for chunk in chunks] == data
    for index in range(options.get("n", 1)):
        choices = [
            chunk["choices"][0] for chunk in chunks if chunk["choices"] and chunk["choices"][0]["index"] == index
        ]
        of_choice = [chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0]["index"] == index]
        texts = [choice.pop("text") if "text" in choice else choice["delta"].pop("content", "") for choice in choices]
        assert "".join(texts) == TEXT
        for choice in choices:
            choice.pop("token_ids", None)
        assert all(chunk == of_choice[1] for chunk in of_choice[1:-1])
