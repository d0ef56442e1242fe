"""Clients of files and batches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types import Batch

from server.http.batches import batch_runner
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer

COMPLETIONS = "/v1/completions"


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_runner, "_POLL_S", 0.01)


@asynccontextmanager
async def client_of(server: RunningServer, key: str = "none") -> AsyncIterator[AsyncOpenAI]:
    http = DefaultAsyncHttpxClient(verify=False)  # reading certificates takes longer than a test
    async with AsyncOpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, http_client=http) as client:
        yield client


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(server) as client:
        yield client


def line(custom_id: str, body: dict[str, Any] | None = None, url: str = COMPLETIONS) -> bytes:
    body = {"model": "fake", "prompt": f"<{custom_id}>", "max_tokens": 30} if body is None else body
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}).encode() + b"\n"


async def create(client: AsyncOpenAI, content: bytes, endpoint: Any = COMPLETIONS, **more: Any) -> Batch:
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint=endpoint, **{"completion_window": "24h", **more}
    )  # fmt: skip


async def wait_for(client: AsyncOpenAI, batch_id: str, holds: Callable[[Batch], bool]) -> Batch:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            batch = await client.batches.retrieve(batch_id)
            if holds(batch):
                return batch
            await asyncio.sleep(0.01)


async def ended(client: AsyncOpenAI, batch_id: str) -> Batch:
    return await wait_for(
        client, batch_id, lambda batch: batch.status in ("completed", "failed", "expired", "cancelled")
    )


async def lines_of(client: AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    content = await client.files.content(file_id)
    return [json.loads(text) for text in content.text.splitlines()]
