"""Pictures in the requests of every API, to a model that reads text alone."""

from __future__ import annotations

from typing import Any

import pytest

from server.media.picture import NOTE
from tests.server.conftest import RunningServer, StartServer

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
URL = f"data:image/png;base64,{PNG}"
CHAT: list[dict[str, Any]] = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": URL}}]
ITEMS = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": URL}]
BLOCKS = [
    {"type": "text", "text": "a"},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
]
BEFORE = {"role": "user", "content": "x"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
USE = {"type": "tool_use", "id": "c", "name": "f", "input": {}}

OF_USERS = {
    "chat": (
        "/v1/chat/completions", {"messages": [BEFORE, {"role": "user", "content": CHAT}]}, "messages[1].content[1]",
    ),
    "responses": ("/v1/responses", {"input": [BEFORE, {"role": "user", "content": ITEMS}]}, "input[1].content[1]"),
    "messages": (
        "/v1/messages", {"max_tokens": 400, "messages": [BEFORE, {"role": "user", "content": BLOCKS}]},
        "messages[1].content[1]",
    ),
    "ollama": (
        "/api/chat", {"stream": False, "messages": [BEFORE, {"role": "user", "content": "a", "images": [PNG]}]},
        "messages[1].images[0]",
    ),
    "ollama's generate": ("/api/generate", {"stream": False, "prompt": "a", "images": [PNG]}, "images[0]"),
    "tokenize": ("/tokenize", {"messages": [{"role": "user", "content": CHAT}]}, "messages[0].content[1]"),
    "count tokens": (
        "/v1/messages/count_tokens", {"messages": [{"role": "user", "content": BLOCKS}]}, "messages[0].content[1]",
    ),
    "input tokens": (
        "/v1/responses/input_tokens", {"input": [{"role": "user", "content": ITEMS}]}, "input[0].content[1]",
    ),
}  # fmt: skip

OF_TOOLS = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [BEFORE, {"role": "tool", "tool_call_id": "c", "content": CHAT}]},
        "messages[].content.image_url",
    ),
    "responses": (
        "/v1/responses",
        {"input": [BEFORE, CALL, {"type": "function_call_output", "call_id": "c", "output": ITEMS}]},
        "input[].output.input_image",
    ),
    "messages": (
        "/v1/messages",
        {
            "max_tokens": 400,
            "messages": [
                BEFORE, {"role": "assistant", "content": [USE]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": BLOCKS}]},
            ],
        },
        "messages[].content[].content.image",
    ),
}  # fmt: skip


@pytest.mark.parametrize("api", OF_USERS)
async def test_a_picture_of_a_user_is_refused_by_its_path(server: RunningServer, api: str) -> None:
    route, body, path = OF_USERS[api]
    status, answer = await server.post(route, {"model": "fake", **body})
    assert status == 400
    assert f"{path} is a picture, and this model reads text alone" in str(answer)


@pytest.mark.parametrize("api", OF_USERS)
async def test_the_operator_may_leave_pictures_out(start_server: StartServer, api: str) -> None:
    server = await start_server(ignore_media=True)
    route, body, path = OF_USERS[api]
    async with server.http.post(server.url + route, json={"model": "fake", **body}) as response:
        assert response.status == 200, await response.text()
        assert response.headers["X-Eagre-Ignored"].startswith(path.partition("[")[0])
        if "okens" not in route and "tokenize" not in route:
            assert NOTE in await response.text()


@pytest.mark.parametrize("api", OF_TOOLS)
async def test_a_picture_of_a_tool_is_a_note(server: RunningServer, api: str) -> None:
    route, body, name = OF_TOOLS[api]
    async with server.http.post(server.url + route, json={"model": "fake", **body}) as response:
        assert response.status == 200, await response.text()
        assert response.headers["X-Eagre-Ignored"] == name
        assert NOTE in await response.text()


async def test_a_stored_turn_keeps_its_picture(server: RunningServer) -> None:
    body = {"input": [CALL, {"type": "function_call_output", "call_id": "c", "output": ITEMS}]}
    _, first = await server.post("/v1/responses", body)
    status, second = await server.post("/v1/responses", {"input": "b", "previous_response_id": first["id"]})
    assert status == 200
    assert NOTE in str(second["output"])
    async with server.http.get(server.url + f"/v1/responses/{first['id']}/input_items") as response:
        (output,) = [item for item in (await response.json())["data"] if item["type"] == "function_call_output"]
    assert output["output"][1] == {"type": "input_image", "image_url": URL, "detail": "auto"}


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image_url"}, "content[0].image_url is null"),
        ({"type": "image_url", "image_url": {"url": 7}}, "content[0].image_url"),
        ({"type": "image_url", "image_url": {"url": URL, "detail": "huge"}}, "must be one of auto, low, high"),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, "a picture must look like"),
        ({"type": "input_image", "image_url": URL, "detail": "huge"}, "must be one of auto, low, high"),
        ({"type": "input_audio"}, "only text, image_url, video_url, video"),
    ],
)
async def test_a_part_that_is_no_picture_is_refused(server: RunningServer, part: dict[str, Any], words: str) -> None:
    status, answer = await server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]})
    assert (status, answer["error"]["param"]) == (400, "messages[0].content")
    assert words in answer["error"]["message"]


async def test_a_picture_on_a_socket_is_refused(server: RunningServer) -> None:
    async with server.http.ws_connect(server.url + "/v1/stream") as socket:
        await socket.send_json({"type": "generate", "id": "a", "messages": [{"role": "user", "content": CHAT}]})
        message = await socket.receive_json()
    assert (message["type"], message["error"]["param"]) == ("error", "messages[0].content[1]")


async def test_models_say_what_they_read(server: RunningServer) -> None:
    async with server.http.get(server.url + "/v1/models") as response:
        assert (await response.json())["data"][0]["modalities"] == ["text"]
