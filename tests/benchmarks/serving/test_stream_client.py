"""A stream counts as whole only with its end, and one that is cut ends on the server too."""

from __future__ import annotations

import aiohttp
import pytest

from benchmarks.serving.stream_client import StreamClient, StreamLost, stream_completion
from tests.fakes.stub_server import BROKEN, CUT_OFF, NUM_CACHED_TOKENS, REFUSED, StubServer


async def test_a_whole_stream_has_its_text_and_its_usage(stub: StubServer) -> None:
    async with aiohttp.ClientSession() as session:
        answer = await stream_completion(session, stub.url, {"prompt": "a", "max_tokens": 7})
    assert (answer.text, answer.finish_reasons, answer.num_events) == ("x" * 7, ["length"], 3)
    assert answer.num_cached_tokens == NUM_CACHED_TOKENS
    assert stub.bodies[0]["model"] == "smollm2-135m-instruct"


async def test_a_stream_that_is_cut_has_what_came(stub: StubServer) -> None:
    async with aiohttp.ClientSession() as session:
        answer = await stream_completion(session, stub.url, {"prompt": "a", "max_tokens": 30_000}, cut_after=2)
        assert 6 <= len(answer.text) < 3000
        assert answer.finish_reasons == []


@pytest.mark.parametrize(
    ("how", "words"),
    [(REFUSED, "HTTP 429: .*queue is full"), (BROKEN, "the engine failed"), (CUT_OFF, "ended after 1 events")],
)
async def test_a_lost_stream_says_how_it_was_lost(stub: StubServer, how: int, words: str) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(StreamLost, match=words):
            await stream_completion(session, stub.url, {"prompt": "a", "max_tokens": how})


async def test_a_websocket_stream_has_the_same_text(stub: StubServer) -> None:
    async with aiohttp.ClientSession() as session:
        client = StreamClient(session, stub.url, {"prompt": "a", "max_tokens": 7}, over_websocket=True)
        await client.read()
    assert (client.text, client.finish_reasons, client.is_done) == ("x" * 7, ["length"], True)
    assert len(client.gaps) == client.num_events - 1 == 2
