"""The same streams from FastAPI, uvicorn and pydantic, in an environment of their own, which `--fastapi` names.

One model, one JSON dump and one write for each token (`pip install fastapi 'uvicorn[standard]'`).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import uvicorn  # type: ignore[import-not-found, unused-ignore]
from fastapi import FastAPI, WebSocket, WebSocketDisconnect  # type: ignore[import-not-found, unused-ignore]
from fastapi.responses import StreamingResponse  # type: ignore[import-not-found, unused-ignore]
from pydantic import BaseModel

app: Any = FastAPI()
ahead = int(sys.argv[2]) if len(sys.argv) > 2 else 1  # tokens of a stream in one turn of the loop


class Request(BaseModel):
    prompt: str
    max_tokens: int


class Choice(BaseModel):
    index: int
    text: str
    logprobs: None = None
    finish_reason: str | None = None


class Chunk(BaseModel):
    id: str
    object: str = "text_completion"
    created: int
    model: str = "fake"
    choices: list[Choice]


class Delta(BaseModel):
    type: str
    id: str
    index: int
    text: str
    token_ids: list[int]


async def tokens(request: Request) -> AsyncIterator[str]:
    for position in range(request.max_tokens):
        if position % ahead == 0:
            await asyncio.sleep(0)
        yield request.prompt[position % len(request.prompt)]


async def events(request: Request) -> AsyncIterator[str]:
    created = int(time.time())
    async for text in tokens(request):
        chunk = Chunk(id="cmpl-1", created=created, choices=[Choice(index=0, text=text)])
        yield f"data: {chunk.model_dump_json()}\n\n"
    yield "data: [DONE]\n\n"


async def complete(request: Request) -> Any:
    return StreamingResponse(events(request), media_type="text/event-stream")


async def stream(socket: Any) -> None:
    """The WebSocket /v1/stream, with any number of generations at once."""
    await socket.accept()
    running: set[asyncio.Task[None]] = set()

    async def answer(message: dict[str, Any]) -> None:
        request = Request.model_validate(message)
        async for text in tokens(request):
            delta = Delta(type="delta", id=message["id"], index=0, text=text, token_ids=[ord(text)])
            await socket.send_text(delta.model_dump_json())
        await socket.send_json({"type": "done", "id": message["id"]})

    try:
        while True:
            running.add(asyncio.create_task(answer(await socket.receive_json())))
    except WebSocketDisconnect:
        for task in running:
            task.cancel()


# Without annotations of their own, because FastAPI resolves those where they are written.
complete.__annotations__ = {"request": Request}
stream.__annotations__ = {"socket": WebSocket}
app.post("/v1/completions")(complete)
app.websocket("/v1/stream")(stream)
app.get("/readiness")(lambda: {"status": "ready"})

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False, backlog=2048)
