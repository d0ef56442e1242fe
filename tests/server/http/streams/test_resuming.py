"""Streams that are cut and resumed, over server-sent events."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.support.resumable import Follower

TEXT = "the tide comes in, é and ü and 海 with it, and goes out again"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": TEXT}], "stream_options": {"include_usage": True}}


async def test_events_have_ids_and_are_those_of_any_stream(server: RunningServer) -> None:
    follower = Follower(server)
    await follower.begin("/v1/completions", {"prompt": TEXT, "max_tokens": 200})
    assert follower.last_id == f"{follower.stream_id}:{len(follower.data)}"
    assert follower.text() == TEXT
    plain = await server.stream_bytes("/v1/completions", {"prompt": TEXT, "max_tokens": 200})
    assert b"id: " not in plain
    assert plain.count(b"data: ") == len(follower.data)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("of_place", ["header", "query"])
async def test_cut_anywhere_nothing_is_lost_or_repeated(server: RunningServer, seed: int, of_place: str) -> None:
    cuts, follower = random.Random(seed), Follower(server)
    await follower.begin("/v1/chat/completions", CHAT, cuts.randint(0, 9))
    for _ in range(100):
        if follower.is_done:
            break
        if of_place == "header":
            await follower.go_on(cuts.randint(0, 9))
        else:
            last_id, follower.last_id = follower.last_id, ""
            stream_id = follower.stream_id
            if last_id:
                follower.stream_id += "?after=" + last_id.split(":")[1]
            await follower.go_on(cuts.randint(1, 9))
            follower.stream_id, follower.last_id = stream_id, follower.last_id or last_id
    plain = await server.stream_bytes("/v1/chat/completions", CHAT)
    assert follower.is_done
    assert len(follower.data) == plain.count(b"data: ")
    assert TEXT in follower.text()
    assert follower.chunks[-1]["usage"]["completion_tokens"] > len(TEXT)


async def test_several_answers_are_resumed_each_at_its_place(server: RunningServer) -> None:
    cuts, follower = random.Random(7), Follower(server)
    body = {"prompt": ["one and two", "three and four, and more"], "n": 2, "max_tokens": 60}
    await follower.begin("/v1/completions", body, 5)
    assert follower.last_id.count("-") == 4
    while not follower.is_done:
        await follower.go_on(cuts.randint(1, 9))
    assert [follower.text(index) for index in range(4)] == [body["prompt"][index // 2] for index in range(4)]  # type: ignore[index]


async def test_the_generation_goes_on_through_a_cut(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    follower = Follower(server)
    engine_task = asyncio.ensure_future(follower.begin("/v1/completions", {"prompt": "tide"}, 1))
    await eventually(lambda: bool(engine.running))
    engine.step()
    await engine_task
    engine.step(10)
    await eventually(lambda: not engine.running)
    await follower.go_on()
    assert (follower.text(), follower.is_done, engine.aborted) == ("tide", True, [])


async def test_tokens_that_come_together_are_events_of_their_own(start_server: StartServer) -> None:
    """So that a run in which they come apart gives the same events."""
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    follower = Follower(server)
    reading = asyncio.ensure_future(follower.begin("/v1/completions", {"prompt": "tide", "logprobs": 1}))
    await eventually(lambda: bool(engine.running))
    engine.step(5)
    await reading
    assert [chunk["choices"][0]["text"] for chunk in follower.chunks] == ["t", "i", "d", "e", ""]
    assert [len(chunk["choices"][0]["logprobs"]["tokens"]) for chunk in follower.chunks] == [1] * 5


async def test_two_readers_at_once_read_the_same(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    one = Follower(server)
    reading = asyncio.ensure_future(one.begin("/v1/completions", {"prompt": "tide"}))
    await eventually(lambda: bool(engine.running))
    engine.step(2)
    await eventually(lambda: len(one.data) == 2)
    two = Follower(server, one.stream_id)
    both = asyncio.gather(reading, two.go_on())
    await asyncio.sleep(0.01)
    engine.step(5)
    await both
    assert one.data == two.data
    assert one.text() == "tide"


async def test_after_the_end_an_event_source_is_told_that_nothing_follows(server: RunningServer) -> None:
    follower = Follower(server)
    await follower.begin("/v1/completions", {"prompt": "tide"})
    await follower.go_on()
    assert follower.status == 204


async def test_deleted_it_stops_and_is_gone(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    follower = Follower(server)
    reading = asyncio.ensure_future(follower.begin("/v1/completions", {"prompt": "tide"}))
    await eventually(lambda: bool(engine.running))
    engine.step(2)
    await eventually(lambda: len(follower.data) == 2)
    url = f"{server.url}/v1/streams/{follower.stream_id}"
    async with server.http.delete(url) as response:
        assert await response.json() == {"id": follower.stream_id, "object": "stream.deleted", "deleted": True}
    await reading
    assert follower.chunks[-1]["choices"][0]["finish_reason"] == "abort"
    for method in ("GET", "DELETE"):
        async with server.http.request(method, url) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "unknown_stream")
    assert server.served.streams.num_bytes == 0


async def test_nobody_reads_it_for_the_grace(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, resume_grace=0.05)
    follower = Follower(server)
    reading = asyncio.ensure_future(follower.begin("/v1/completions", {"prompt": "tide"}, 1))
    await eventually(lambda: bool(engine.running))
    engine.step()
    await reading
    await eventually(lambda: engine.aborted != [])
    await eventually(lambda: server.served.streams.num_streams == 0)


async def test_cut_without_resumable_it_ends_at_once(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    body = {"prompt": "tide", "stream": True}
    async with server.http.post(server.url + "/v1/completions", json=body) as response:
        assert "X-Eagre-Stream" not in response.headers
        await eventually(lambda: bool(engine.running))
        response.close()
    await eventually(lambda: engine.aborted != [])


async def test_where_there_is_no_room_it_is_served_and_says_that_it_cannot_be_resumed(
    start_server: StartServer,
) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, resume_max_streams=1)
    held, plain = Follower(server), Follower(server)
    reading = asyncio.gather(
        held.begin("/v1/completions", {"prompt": "tide"}), plain.begin("/v1/completions", {"prompt": "tide"})
    )
    await eventually(lambda: len(engine.running) == 2)
    engine.step(5)
    await reading
    assert {held.stream_id, plain.stream_id} > {"none"}
    assert held.text() == plain.text() == "tide"
    unheld = plain if plain.stream_id == "none" else held
    assert unheld.last_id == ""


async def test_a_refused_request_leaves_nothing(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(is_manual=True, max_num_queued=0))
    for body, expected in (
        ({"prompt": "tide"}, (429, "queue_full")),
        ({"prompt": "tide", "max_tokens": 5000}, (400, "context_length_exceeded")),
        ({"prompt": ["tide"] * 17}, (400, "invalid_value")),
        ({"prompt": "tide", "stream": False}, (400, "invalid_value")),
    ):
        status, answer = await server.post("/v1/completions", {"stream": True, "resumable": True, **body})
        assert (status, answer["error"]["code"]) == expected
    assert server.served.streams.num_streams == 0


async def test_a_failure_is_the_last_event_of_every_reader(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    follower = Follower(server)
    reading = asyncio.ensure_future(follower.begin("/v1/completions", {"prompt": "tide"}))
    await eventually(lambda: bool(engine.running))
    engine.step()
    await eventually(lambda: len(follower.data) == 1)
    engine.submitted[0].meet_dead_end("no way on")
    await reading
    assert follower.chunks[-1]["error"]["code"] == "dead_end"
    later = Follower(server, follower.stream_id)
    await later.go_on()
    assert later.data == follower.data


async def test_wrong_places_and_ids(server: RunningServer) -> None:
    follower = Follower(server)
    await follower.begin("/v1/completions", {"prompt": "tide"})
    url, right = f"{server.url}/v1/streams/", follower.stream_id
    for path, last_id, status, code in (
        (right, f"{right}:999", 400, "invalid_value"),
        (right, f"{right}:-1", 400, "invalid_value"),
        (right, f"{right}:1-2", 400, "invalid_value"),
        (right, f"{right}:", 400, "invalid_value"),
        (right, "x" * 5000, 400, "invalid_value"),
        (right, "9" * 5000, 400, "invalid_value"),
        (right, f"{'0' * 32}:1", 400, "invalid_value"),
        (right, "é", 400, "invalid_value"),
        (right + "?after=x", "", 400, "invalid_value"),
        (right + "?after=%00", "", 400, "invalid_value"),
        ("0" * 32, "", 404, "unknown_stream"),
        ("x" * 3000, "", 404, "unknown_stream"),
        (right + "?after=2", f"{right}:1", 200, ""),
        (right, "1", 200, ""),
    ):
        async with server.http.get(url + path, headers={"Last-Event-ID": last_id} if last_id else {}) as response:
            assert response.status == status, (path, last_id)
            if code:
                assert (await response.json())["error"]["code"] == code
            else:
                assert (await response.read()).startswith(b": ping\n\nid: %b:2\ndata: " % right.encode())


async def test_another_key_finds_nothing(start_server: StartServer) -> None:
    server = await start_server(api_keys=("key-of-one one", "key-of-two two"))
    server.http.headers["Authorization"] = "Bearer key-of-one"
    follower = Follower(server)
    await follower.begin("/v1/completions", {"prompt": "tide"})
    url = f"{server.url}/v1/streams/{follower.stream_id}"
    for method in ("GET", "DELETE"):
        for key, status in (("key-of-two", 404), ("key-of-nobody", 401)):
            headers = {"Authorization": f"Bearer {key}"}
            async with server.http.request(method, url, headers=headers) as response:
                assert response.status == status
    async with server.http.get(url) as response:
        assert response.status == 200


async def test_a_stream_of_unread_memory_drops_what_is_oldest(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True, max_model_len=4096)
    server = await start_server(engine, resume_max_bytes=1 << 16)
    follower = Follower(server)
    reading = asyncio.ensure_future(follower.begin("/v1/completions", {"prompt": "x" * 1000, "max_tokens": 1000}, 1))
    await eventually(lambda: bool(engine.running))
    engine.step()
    await reading
    engine.step(1000)
    await eventually(lambda: not engine.running)
    assert server.served.streams.num_bytes <= 1 << 16
    await follower.go_on()
    assert follower.chunks[-1]["error"]["code"] == "events_dropped"


async def test_stream_interval_gives_fewer_and_longer_deltas(server: RunningServer) -> None:
    for is_resumable in (False, True):
        body = {"prompt": "abcdefghijk", "stream_interval": 4, "return_token_ids": True, "max_tokens": 50}
        follower = Follower(server)
        if is_resumable:
            await follower.begin("/v1/completions", body)
            told = [(chunk["choices"][0]["text"], len(chunk["choices"][0]["token_ids"])) for chunk in follower.chunks]
            assert told == [("a", 1), ("bcde", 4), ("fghi", 4), ("jk", 3)]
        else:
            plain = await server.stream_bytes("/v1/completions", body)
            assert plain.count(b"data: ") <= 5
    status, answer = await server.post("/v1/completions", {"prompt": "a", "stream_interval": 0})
    assert (status, answer["error"]["param"]) == (400, "stream_interval")


async def test_messages_are_resumed_too(server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 200}
    cuts, follower = random.Random(5), Follower(server)
    await follower.begin("/v1/messages", body, 3)
    while follower.chunks[-1]["type"] != "message_stop":
        await follower.go_on(cuts.randint(1, 9))
    plain = await server.stream_bytes("/v1/messages", body)
    assert [chunk["type"] for chunk in follower.chunks] == [
        line.removeprefix("event: ") for line in plain.decode().split("\n") if line.startswith("event: ")
    ]
    deltas = [chunk["delta"] for chunk in follower.chunks if chunk["type"] == "content_block_delta"]
    assert TEXT in "".join(delta["text"] for delta in deltas)
