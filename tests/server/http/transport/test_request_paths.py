"""Routes by other paths: under the server's prefix, without /v1, and those of some APIs only."""

from __future__ import annotations

import pytest

from server.http.transport.request_paths import RequestPaths
from server.startup.settings import Api, ServerSettings, SettingsError
from tests.server.conftest import RunningServer, StartServer

CHAT = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("method", "path", "own"),
    [
        ("POST", "/chat/completions", "/chat/completions"),
        ("POST", "/llm/chat/completions", "/chat/completions"),
        ("POST", "/chat/completions/render", "/v1/chat/completions/render"),
        ("POST", "/llm/v1/messages", "/v1/messages"),
        ("POST", "/messages/count_tokens", "/v1/messages/count_tokens"),
        ("GET", "/responses/a", "/v1/responses/a"),
        ("GET", "/models/a/b", "/v1/models/a/b"),
        ("GET", "/models", "/models"),
        ("POST", "/models/load", "/models/load"),
        ("POST", "/completions", "/completions"),
        ("GET", "/llm/", "/"),
        ("GET", "/llm", "/llm"),
        ("GET", "/llms/health", "/llms/health"),
        ("GET", "/llm/health", "/health"),
    ],
)
def test_the_path_of_a_route(method: str, path: str, own: str) -> None:
    assert RequestPaths("/llm", tuple(Api)).own(method, path) == own


def test_without_llama_cpps_api_its_paths_are_openais() -> None:
    paths = RequestPaths(None, (Api.OPENAI,))
    for name in ("completions", "embeddings", "models"):
        assert paths.own("POST", f"/{name}") == f"/v1/{name}"
    assert paths.own("POST", "/chat/completions") == "/v1/chat/completions"
    assert paths.own("POST", "/messages") == "/messages"


async def test_routes_without_the_version(server: RunningServer) -> None:
    _, expected = await server.post("/v1/chat/completions", CHAT)
    status, answer = await server.post("/chat/completions?a=b", CHAT)
    assert (status, answer["choices"]) == (200, expected["choices"])
    status, answer = await server.post("/messages", {**CHAT, "max_tokens": 0})
    assert (status, answer["type"]) == (400, "error")  # in Anthropic's form
    assert (await server.get("/models/fake"))[1]["id"] == "fake"


async def test_everything_is_under_the_prefix_too(start_server: StartServer) -> None:
    server = await start_server(api_prefix="/llm", api_keys=("a-secret-key",))
    async with server.http.get(server.url + "/llm/v1/models") as response:
        assert response.status == 401
    async with server.http.get(server.url + "/llm/liveness") as response:
        assert response.status == 200
    async with server.http.get(server.url + "/llm/") as response:
        page = await response.text()
    assert (response.status, 'src="/' in page, 'href="/' in page) == (200, False, False)
    for path in ("/llm/v1/chat/completions", "/llm/chat/completions", "/v1/chat/completions"):
        async with server.http.post(
            server.url + path, json=CHAT, headers={"Authorization": "Bearer a-secret-key"}
        ) as response:
            assert response.status == 200


async def test_a_server_has_the_apis_that_it_is_told_to(start_server: StartServer) -> None:
    server = await start_server(apis=("openai",))
    for path in ("/v1/messages", "/api/chat", "/completion", "/props"):
        status, answer = await server.post(path, CHAT)
        assert (status, "there is no" in str(answer)) == (404, True)
    for path in ("/v1/chat/completions", "/chat/completions"):
        assert (await server.post(path, CHAT))[0] == 200
    assert (await server.post("/completions", {"prompt": "a"}))[1]["object"] == "text_completion"
    _, document = await server.get("/openapi.json")
    assert not [path for path in document["paths"] if path.startswith(("/api/", "/v1/messages", "/props"))]
    assert "/v1/chat/completions" in document["paths"]


@pytest.mark.parametrize(
    "wrong",
    [{"apis": ("opena",)}, {"apis": ()}, {"api_prefix": "llm"}, {"api_prefix": "/llm/"}],
)
def test_what_is_no_api_or_prefix(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        ServerSettings(**wrong)  # type: ignore[arg-type]
