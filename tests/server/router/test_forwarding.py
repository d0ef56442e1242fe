"""What passes a front: answers, refusals, cuts, cancels, and what one replica has."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from server.admission.cpu_throttle import CpuThrottle
from server.router import router
from server.router.proxy_response import REPLICA_HEADER
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.router.conftest import FRONT_KEY, RunningFront, StartFront

LONG = "the tide comes in, and " * 16  # more than a block, and less than the model can take
MESSAGES = [{"role": "user", "content": LONG}]
KEY, ADMIN = "a-client-of-this-test", "an-operator-of-this-test"


@pytest.fixture
async def pair(start_server: StartServer, start_front: StartFront) -> RunningFront:
    settings = {"front_key": FRONT_KEY, "max_body_bytes": 4096}
    return await start_front([await start_server(**settings) for _ in range(2)], **settings)


@pytest.fixture
async def slow(start_server: StartServer, start_front: StartFront) -> RunningFront:
    """Its engines emit when they are told to."""
    engines = [FakeEngineClient(is_manual=True) for _ in range(2)]
    return await start_front([await start_server(engine, front_key=FRONT_KEY) for engine in engines])


def busy(front: RunningFront) -> RunningServer:
    """The server that has something to do."""
    [found] = [server for server in front.servers.values() if server.engine.running]
    return found


async def test_answers_are_those_of_the_replica(pair: RunningFront) -> None:
    body = {"prompt": "the tide", "max_tokens": 20, "request_id": "mine"}
    async with pair.http.post(pair.url + "/v1/completions", json=body, headers={"X-Request-Id": "abc"}) as answer:
        through = await answer.json()
        assert answer.headers["X-Request-Id"] == "abc"
        name = answer.headers[REPLICA_HEADER]
    status, direct = await pair.servers[name].post("/v1/completions", body)
    assert status == 200
    assert {**through, "created": 0} == {**direct, "created": 0}
    streamed = await pair.stream_bytes("/v1/completions", body)
    assert streamed.endswith(b"data: [DONE]\n\n")
    for path in ("/v1/models", "/", "/version", "/openapi.json", "/static/app.js"):
        async with pair.http.get(pair.url + path) as one, pair.http.get(pair.servers["0"].url + path) as other:
            assert one.status == other.status
            # But for the seconds in which the replicas have started.
            through, direct = [re.sub(rb"\b1\d{9}\b", b"", await answer.read()) for answer in (one, other)]
            assert through == direct


async def test_the_page_behind_a_front_with_keys_tells_nothing_without_one(
    start_server: StartServer, start_front: StartFront
) -> None:
    """Its servers may want none, because only the front reaches them."""
    server = await start_server()
    front = await start_front([server], api_keys=(KEY,))
    async with front.http.get(front.url + "/") as through, front.http.get(server.url + "/") as direct:
        page, own = await through.text(), await direct.text()
    assert '<meta id="state" content="">' in page
    assert 'href="v1/models"' not in page
    assert "&quot;data&quot;" in own


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/completions", b"{", 400, "invalid_json"),
        ("/v1/completions", b"[]", 400, "invalid_type"),
        ("/v1/completions", b"", 400, "invalid_json"),
        ("/v1/chat/completions", b'{"messages": 5}', 400, "invalid_value"),
        ("/v1/completions", b'{"prompt": "a", "stream": true, "resumable": 5}', 400, "invalid_value"),
        ("/v1/nothing", b"{}", 404, "unknown_url"),
        ("/v1/models", b"{}", 405, "method_not_allowed"),
        ("/v1/completions", b'"%b"' % (b"x" * 5000), 413, "body_too_large"),
        ("/v1/requests/none/cancel", b"", 404, "unknown_request"),
        ("/v1/responses", b'{"input": "a", "previous_response_id": "resp_none"}', 400, "previous_response_not_found"),
    ],
)
async def test_refusals_have_the_form_that_they_have_without_a_front(
    pair: RunningFront, path: str, body: bytes, status: int, code: str
) -> None:
    answer = await pair.post_raw(path, body)
    assert answer == await pair.servers["0"].post_raw(path, body)
    assert (answer[0], answer[1]["error"]["code"]) == (status, code)


async def test_a_name_that_is_nested_deeply_is_for_the_replica_to_refuse(pair: RunningFront) -> None:
    body = b'{"prompt": "a", "model": %b%b}' % (b"[" * 1000, b"]" * 1000)
    async with pair.http.post(pair.url + "/v1/completions", data=body) as answer:
        assert answer.status == 400, await answer.text()


async def test_too_many_values_are_for_the_replica_to_refuse(
    start_server: StartServer, start_front: StartFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    front = await start_front([await start_server(max_body_bytes=1 << 20)], max_body_bytes=1 << 20)
    monkeypatch.setattr(router, "prefix_blocks", lambda *_: pytest.fail("the front has parsed the body"))
    body = b'{"prompt":[' + b",".join([b"[]"] * 40_000) + b"]}"
    async with front.http.post(front.url + "/v1/completions", data=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["code"] == "too_many_values"


async def test_prompts_with_one_beginning_go_to_one_replica(pair: RunningFront) -> None:
    async def place(prompt: str) -> str:
        body = {"prompt": prompt, "max_tokens": 1}
        async with pair.http.post(pair.url + "/v1/completions", json=body) as answer:
            return answer.headers[REPLICA_HEADER]

    for beginning in ("one", "two", "three"):
        assert len({await place(f"{beginning} {LONG} {number}") for number in range(4)}) == 1
    assert {await place(str(number)) for number in range(4)} == {"0", "1"}


async def test_a_client_that_leaves_ends_its_request_at_once(slow: RunningFront) -> None:
    for is_stream in (True, False):
        asking = asyncio.ensure_future(
            slow.http.post(slow.url + "/v1/completions", json={"prompt": LONG, "stream": is_stream})
        )
        await eventually(lambda: any(server.engine.running for server in slow.servers.values()))
        engine = busy(slow).engine
        if is_stream:
            engine.step(3)
            (await asking).close()
        else:
            asking.cancel()
        await eventually(lambda engine=engine: not engine.running)  # type: ignore[misc]
    await eventually(lambda: not any(replica.num_open for replica in slow.router.replicas))


async def test_a_slow_reader_holds_up_its_replica_and_not_the_front(pair: RunningFront) -> None:
    whole = await pair.stream_bytes("/v1/completions", {"prompt": LONG, "max_tokens": 90})
    body = {"prompt": LONG, "max_tokens": 90, "stream": True}
    async with pair.http.post(pair.url + "/v1/completions", json=body) as answer:
        await asyncio.sleep(0.05)
        text = b"".join([piece async for piece in answer.content.iter_any()])
    assert text_of(text) == text_of(whole)


def text_of(stream: bytes) -> str:
    events = [line.removeprefix(b"data: ") for line in stream.split(b"\n\n") if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["text"] for choice in choices)


@pytest.mark.parametrize(
    ("path", "body", "first", "last"),
    [
        ("/v1/completions", {"prompt": LONG}, b'"text":', b"data: "),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 99}, b"content_block_delta", b"event: error\ndata: "),
        ("/v1/responses", {"input": LONG}, b"output_text.delta", b"event: error\ndata: "),
    ],
)
async def test_a_stream_whose_replica_dies_ends_with_one_error(
    slow: RunningFront, path: str, body: dict[str, Any], first: bytes, last: bytes
) -> None:
    received = bytearray()

    async def read() -> None:
        async with slow.http.post(slow.url + path, json={**body, "stream": True}) as answer:
            async for piece in answer.content.iter_any():
                received.extend(piece)

    reading = asyncio.ensure_future(read())
    await eventually(lambda: any(server.engine.running for server in slow.servers.values()))
    server = busy(slow)
    server.engine.step(5)
    await eventually(lambda: first in received)
    await server.cut_connections()
    await reading
    *before, event = received.removesuffix(b"\n\n").split(b"\n\n")
    assert event.startswith(last)
    told = json.loads(event.partition(b"data: ")[2])
    assert "was lost" in json.dumps(told)
    assert not any(b"was lost" in each for each in before)
    if told.get("type") == "error" and "sequence_number" in told:
        assert told["sequence_number"] == json.loads(before[-1].partition(b"data: ")[2])["sequence_number"] + 1


async def test_an_answer_that_has_not_begun_comes_from_another_replica(slow: RunningFront) -> None:
    asking = asyncio.ensure_future(slow.post("/v1/completions", {"prompt": "tide", "max_tokens": 9}))
    await eventually(lambda: any(server.engine.running for server in slow.servers.values()))
    lost = busy(slow)
    await lost.cut_connections()
    await eventually(lambda: any(server.engine.running for server in slow.servers.values() if server is not lost))
    [other] = [server for server in slow.servers.values() if server is not lost]
    other.engine.step(30)
    status, answer = await asking
    assert (status, answer["choices"][0]["text"]) == (200, "tide")
    await other.cut_connections()
    status, answer = await slow.post("/v1/completions", {"prompt": "tide"})
    assert (status, answer["error"]["code"]) == (503, "no_replica")
    assert (await slow.get("/readiness"))[0] == 503


async def test_a_replica_that_drains_gets_nothing_new_and_ends_what_it_has(slow: RunningFront) -> None:
    reading = asyncio.ensure_future(slow.stream_bytes("/v1/completions", {"prompt": "abc", "max_tokens": 9}))
    await eventually(lambda: any(server.engine.running for server in slow.servers.values()))
    first = busy(slow)
    first.served.start_draining()
    asked = [asyncio.ensure_future(slow.post("/v1/completions", {"prompt": "d", "max_tokens": 2})) for _ in range(4)]
    [other] = [server for server in slow.servers.values() if server is not first]
    await eventually(lambda: len(other.engine.running) == 4)
    other.engine.step(9)
    assert [(await answer)[0] for answer in asked] == [200] * 4
    first.engine.step(9)
    assert (await reading).endswith(b"[DONE]\n\n")


async def test_a_request_is_cancelled_where_it_runs(slow: RunningFront) -> None:
    for number in range(2):
        body = {"prompt": "abc", "request_id": f"r{number}"}
        asking = asyncio.ensure_future(slow.post("/v1/completions", body))
        await eventually(lambda: any(server.engine.running for server in slow.servers.values()))
        assert (await slow.post(f"/v1/requests/r{number}/cancel", {}))[1]["cancelled"] is True
        assert (await asking)[1]["choices"][0]["finish_reason"] == "abort"


async def test_an_operator_reaches_every_replica(start_server: StartServer, start_front: StartFront) -> None:
    engines = [FakeEngineClient(is_manual=True) for _ in range(2)]
    servers = [await start_server(engine, admin_keys=(ADMIN,)) for engine in engines]
    front = await start_front(servers, admin_keys=(ADMIN,))
    headers = {"Authorization": f"Bearer {ADMIN}"}
    asking = asyncio.ensure_future(front.post("/v1/completions", {"prompt": "abc", "request_id": "mine"}))
    await eventually(lambda: any(engine.running for engine in engines))
    for status in (200, 404):
        body = {"request_id": "mine" if status == 200 else "yours"}
        async with front.http.post(front.url + "/admin/abort", json=body, headers=headers) as answer:
            assert answer.status == status
    assert (await asking)[1]["choices"][0]["finish_reason"] == "abort"
    for action, state in (("pause", "paused"), ("resume", "running")):
        async with front.http.post(f"{front.url}/admin/{action}", headers=headers) as answer:
            assert (await answer.json())["state"] == state
        assert [server.served.first.engine_state for server in servers] == [state] * 2


async def test_responses_and_conversations_are_found_where_they_are(pair: RunningFront) -> None:
    stored = [(await pair.post("/v1/responses", {"input": f"say {number}"}))[1] for number in range(4)]
    for response in stored:
        assert (await pair.get(f"/v1/responses/{response['id']}"))[1]["id"] == response["id"]
        follow = {"input": "more", "previous_response_id": response["id"]}
        assert (await pair.post("/v1/responses", follow))[1]["previous_response_id"] == response["id"]
    _, conversation = await pair.post("/v1/conversations", {})
    item = {"items": [{"type": "message", "role": "user", "content": "hello"}]}
    assert (await pair.post(f"/v1/conversations/{conversation['id']}/items", item))[0] == 200
    assert (await pair.post("/v1/responses", {"input": "x", "conversation": conversation["id"]}))[0] == 200
    assert len((await pair.get(f"/v1/conversations/{conversation['id']}/items"))[1]["data"]) == 3


async def test_items_are_referred_to_where_they_are(pair: RunningFront) -> None:
    """Whichever replica has the response that a reference leads to."""
    stored = [(await pair.post("/v1/responses", {"input": f"say {number}"}))[1] for number in range(4)]
    for response in stored:
        [item] = response["output"]
        for reference in ({"type": "item_reference", "id": item["id"]}, {"id": item["id"]}):
            items = [reference, {"role": "user", "content": "and more"}]
            status, answer = await pair.post("/v1/responses", {"input": items})
            assert (status, answer["status"]) == (200, "completed")
            status, conversation = await pair.post("/v1/conversations", {"items": items})
            assert status == 200
            _, listed = await pair.get(f"/v1/conversations/{conversation['id']}/items?order=asc")
            assert listed["data"][0]["content"] == item["content"]
    status, answer = await pair.post("/v1/responses", {"input": [{"type": "item_reference", "id": "msg_none"}]})
    assert (status, answer["error"]["code"]) == (400, "item_not_found")


async def test_sockets_pass_in_both_directions_and_end_with_their_replica(pair: RunningFront) -> None:
    async with pair.http.ws_connect(pair.url + "/v1/stream") as socket:
        await socket.send_json({"type": "generate", "id": "a", "prompt": "tide"})
        kinds = []
        while kinds[-1:] != ["done"]:
            kinds.append((await socket.receive_json())["type"])
        assert kinds[0] == "start"
        await socket.send_bytes(b"x")
        assert (await socket.receive_json())["error"]["code"] == "binary_frame"
        [used] = [replica for replica in pair.router.replicas if replica.num_open]
        await pair.servers[used.name].cut_connections()
        end = await socket.receive()
        assert (end.type, end.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.SERVICE_RESTART)
    status, answer = await pair.get("/v1/stream")
    assert (status, answer["error"]["code"]) == (426, "upgrade_required")


async def test_the_doors_are_at_the_front(start_server: StartServer, start_front: StartFront) -> None:
    settings = {"api_keys": (KEY,), "admin_keys": (ADMIN,), "front_key": FRONT_KEY}
    servers = [await start_server(**settings) for _ in range(2)]
    front = await start_front(servers, **settings, allowed_origins=("https://app.example",))
    body, known = {"prompt": "a", "max_tokens": 1}, {"Authorization": f"Bearer {KEY}"}

    async def status(headers: dict[str, str], path: str = "/v1/completions") -> int:
        async with front.http.post(front.url + path, json=body, headers=headers) as answer:
            if headers.get("Origin") == "https://app.example":
                assert answer.headers["Access-Control-Allow-Origin"] == headers["Origin"]
            return answer.status

    assert await status({}) == 401
    assert await status({"Authorization": "Bearer something-else"}) == 401
    assert await status(known) == 200
    assert await status({"x-api-key": KEY}, "/v1/chat/completions") == 400
    assert await status({**known, "Origin": "https://app.example"}) == 200
    assert await status({**known, "Origin": "https://evil.example"}) == 403
    assert await status(known, "/admin/reset_prefix_cache") == 403
    async with front.http.post(
        front.url + "/admin/reset_prefix_cache", headers={"Authorization": f"Bearer {ADMIN}"}
    ) as answer:
        assert answer.status == 200
    async with front.http.get(front.metrics_url + "/metrics") as answer:
        page = await answer.text()
    for name in ("0", "1"):
        assert f'eagre_front_replica_ready{{replica="{name}"}} 1.0' in page
        assert f'eagre_streams_active{{replica="{name}"' in page or f'replica="{name}"' in page
    assert page.count("# TYPE eagre_generation_tokens_total counter") <= 1


async def test_a_stranger_is_refused_in_the_form_of_each_route(
    start_server: StartServer, start_front: StartFront
) -> None:
    settings = {"api_keys": (KEY,), "front_key": FRONT_KEY}
    server = await start_server(**settings)
    front = await start_front([server], **settings)
    for method, path in (
        ("GET", "/api/tags"), ("POST", "/api/show"), ("DELETE", "/api/delete"), ("GET", "/slots"),
        ("POST", "/embedding"), ("GET", "/models"), ("POST", "/v1/messages/count_tokens"), ("GET", "/v1/models"),
    ):  # fmt: skip
        answers = []
        for url in (front.url, server.url):
            headers = {"X-Request-Id": "req-1"}
            async with front.http.request(method, url + path, headers=headers) as answer:
                answers.append((answer.status, await answer.json()))
        assert answers[0] == answers[1], path
        assert answers[0][0] == 401


async def test_health_tells_of_all_replicas(pair: RunningFront) -> None:
    status, told = await pair.get("/health")
    assert (status, told["status"], set(told["replicas"])) == (200, "ready", {"0", "1"})
    assert told["replicas"]["0"]["health"]["status"] == "ready"
    await pair.servers["0"].cut_connections()
    await eventually(lambda: len(pair.router.replicas.usable) == 1)
    status, told = await pair.get("/health")
    assert (status, told["replicas"]["0"]["state"], told["replicas"]["0"]["health"]) == (200, "gone", None)
    assert (await pair.get("/readiness"))[1]["detail"] == "1 of 2 replicas accept requests"


async def test_replicas_come_and_go(slow: RunningFront) -> None:
    reading = asyncio.ensure_future(slow.stream_bytes("/v1/completions", {"prompt": "abc", "max_tokens": 9}))
    await eventually(lambda: any(server.engine.running for server in slow.servers.values()))
    [(name, left)] = [(name, server) for name, server in slow.servers.items() if server.engine.running]
    kept = {other: server.url for other, server in slow.servers.items() if other != name}
    slow.router.replicas.update(kept)
    assert [replica.name for replica in slow.router.replicas.usable] == list(kept)
    left.engine.step(9)
    assert (await reading).endswith(b"[DONE]\n\n")
    await eventually(lambda: len(slow.router.replicas) == 1)
    slow.router.replicas.update({**kept, "new": left.url})
    await eventually(lambda: len(slow.router.replicas.usable) == 2)
    with pytest.raises(ValueError, match="unix:"):
        slow.router.replicas.add("odd", "ftp://x")


async def test_a_front_never_rests_because_no_engine_waits_for_it(
    start_front: StartFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_rests = 0

    def call(_rests: CpuThrottle, function: Callable[[], object]) -> object:
        nonlocal num_rests
        num_rests += 1
        return function()

    monkeypatch.setattr(CpuThrottle, "call", call)
    front = await start_front([])
    assert await front.router.workers.run_large(len, "abc") == 3
    assert num_rests == 0
