from __future__ import annotations

from dataclasses import replace

import aiohttp
import pytest

from server.cli.bench.load.load import Load
from server.cli.bench.load.trace import Trace
from server.cli.bench.load.workload import Route, Workload
from tests.fakes.stub_server import BROKEN, CUT_OFF, NUM_CACHED_TOKENS, REFUSED, TEXTLESS, StubServer

ANYWHERE = Workload(url="http://127.0.0.1:1", model="stub")


async def run_clients(workload: Workload) -> list[Trace]:
    load = Load(workload)
    await load.run()
    return load.traces


def test_prompts_are_of_exact_length_and_all_different() -> None:
    workload = replace(ANYWHERE, num_requests=20, num_prompt_tokens=50, token_ids=(10, 20))
    prompts = [body["prompt"] for body in workload.bodies()]
    assert {len(prompt) for prompt in prompts} == {50}
    assert {token for prompt in prompts for token in prompt} <= set(range(10, 20))
    assert len({tuple(prompt) for prompt in prompts}) == 20
    assert [body["prompt"] for body in workload.bodies()] == prompts
    assert [body["prompt"] for body in replace(workload, seed=1).bodies()] != prompts


def test_prompts_share_their_beginning_and_nothing_else() -> None:
    workload = replace(ANYWHERE, num_requests=3, num_prompt_tokens=50, num_shared_tokens=30)
    prompts = list(workload.token_prompts())
    assert [len(prompt) for prompt in prompts] == [50] * 3
    assert len({tuple(prompt[:30]) for prompt in prompts}) == 1
    assert len({prompt[30] for prompt in prompts}) == 3
    texts = [text.split(" ") for text in workload.text_prompts()]
    assert len({tuple(words[:30]) for words in texts}) == 1
    assert len({tuple(words) for words in texts}) == 3


def test_text_prompts_have_one_word_a_token() -> None:
    (body,) = replace(ANYWHERE, num_requests=1, num_prompt_tokens=50, prompt_kind="text").bodies()
    assert len(body["prompt"].split(" ")) == 50


@pytest.mark.parametrize("route", ["completions", "chat", "websocket"])
async def test_closed_loop(stub: StubServer, route: Route) -> None:
    workload = Workload(url=stub.url, model="stub", route=route, concurrency=3, num_requests=8, num_output_tokens=10)
    traces = await run_clients(workload)
    assert [trace.error for trace in traces] == [None] * 8
    # Ten tokens arrive in chunks of three: each token is counted once, and the sizes of chunks are kept.
    assert {tuple(arrival.num_tokens for arrival in trace.arrivals) for trace in traces} == {(3, 3, 3, 1)}
    assert {trace.num_output_tokens for trace in traces} == {10}
    assert {trace.finish_reason for trace in traces} == {"length"}
    assert stub.max_open == 3
    wanted = "messages" if route == "chat" else "prompt"
    assert sorted(str(body[wanted]) for body in stub.bodies) == sorted(str(body[wanted]) for body in workload.bodies())
    assert {(body["model"], body["temperature"], body["ignore_eos"]) for body in stub.bodies} == {("stub", 0, True)}
    for trace in traces:
        times = [trace.sent, *(arrival.time for arrival in trace.arrivals), trace.ended]
        assert times == sorted(times)


@pytest.mark.parametrize("keep_alive", [True, False])
async def test_each_client_or_each_request_has_its_own_connection(stub: StubServer, keep_alive: bool) -> None:
    workload = Workload(url=stub.url, model="stub", concurrency=2, num_requests=6, num_output_tokens=9)
    await run_clients(replace(workload, keep_alive=keep_alive))
    assert len(stub.clients) == (2 if keep_alive else 6)


async def test_chunks_without_token_ids(stub: StubServer) -> None:
    workload = Workload(url=stub.url, model="stub", num_requests=1, num_output_tokens=10, return_token_ids=False)
    (trace,) = await run_clients(workload)
    assert "return_token_ids" not in stub.bodies[0]
    assert len(trace.arrivals) == 4  # of three tokens each, which the chunks do not report
    assert (trace.num_tokens, trace.num_cached_tokens) == (10, NUM_CACHED_TOKENS)


async def test_an_end_without_any_text_counts_as_the_first_token(stub: StubServer) -> None:
    workload = Workload(url=stub.url, model="stub", num_requests=1, num_output_tokens=TEXTLESS, return_token_ids=False)
    (trace,) = await run_clients(workload)
    assert trace.ttft is not None
    assert len(trace.arrivals) == 1


@pytest.mark.parametrize("num_connections", [1, 3])
async def test_clients_share_sockets(stub: StubServer, num_connections: int) -> None:
    workload = Workload(
        url=stub.url,
        model="stub",
        route="websocket",
        concurrency=6,
        num_requests=12,
        num_output_tokens=9,
        num_connections=num_connections,
    )
    traces = await run_clients(workload)
    assert [trace.num_tokens for trace in traces] == [9] * 12
    assert stub.num_sockets == num_connections
    assert stub.max_open == 6


@pytest.mark.parametrize(
    ("route", "failure", "message"),
    [
        ("completions", REFUSED, "HTTP 429"),
        ("completions", BROKEN, "the engine failed"),
        ("completions", CUT_OFF, "without [DONE]"),
        ("websocket", REFUSED, "queue is full"),
        ("websocket", CUT_OFF, "the socket was closed"),
    ],
)
async def test_failures_are_recorded(stub: StubServer, route: Route, failure: int, message: str) -> None:
    workload = Workload(url=stub.url, model="stub", route=route, num_requests=1, num_output_tokens=failure)
    (trace,) = await run_clients(workload)
    assert trace.error is not None
    assert message in trace.error


@pytest.mark.parametrize("route", ["completions", "chat", "websocket"])
async def test_a_request_that_never_ends_is_given_up(stub: StubServer, route: Route) -> None:
    workload = Workload(url=stub.url, model="stub", route=route, num_requests=2, num_output_tokens=10**6, timeout=0.5)
    traces = await run_clients(workload)
    assert [trace.error for trace in traces] == ["not ended after 0.5 s"] * 2
    assert all(trace.arrivals for trace in traces)


async def test_a_server_that_does_not_answer_is_reported(unused_tcp_port: int) -> None:
    workload = replace(ANYWHERE, url=f"http://127.0.0.1:{unused_tcp_port}", num_requests=2)
    traces = await run_clients(workload)
    assert all("Cannot connect" in (trace.error or "") for trace in traces)
    with pytest.raises(aiohttp.ClientConnectorError):
        await run_clients(replace(workload, route="websocket"))
