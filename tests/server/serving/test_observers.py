"""Observers of a generation: each learns its end exactly once, and none that fails harms the answer or the others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from server.api.openai.completions import CompletionCall
from server.generation.answers import GenerationStats
from server.generation.generation_request import GenerationRequest
from server.generation.observer import GenerationObserver
from server.generation.prompts import PreparedPrompt
from server.protocol.errors import ApiError
from server.serving.submit import Submission
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import StartServer, eventually, start_server  # noqa: F401 - a fixture


class Ends(GenerationObserver):
    def __init__(self) -> None:
        self.errors: list[BaseException | None] = []

    def finished(self, stats: GenerationStats | None, error: BaseException | None) -> None:
        self.errors.append(error)


class FailsAtTheEnd(GenerationObserver):
    def finished(self, stats: GenerationStats | None, error: BaseException | None) -> None:
        raise RuntimeError("the observer fails")


class FailsAtTheBeginning(GenerationObserver):
    def submitted(self, prompts: Sequence[PreparedPrompt]) -> None:
        raise RuntimeError("the observer fails")


def request() -> GenerationRequest:
    return CompletionCall.parse({"prompt": "ab"}).request


async def test_an_observer_that_fails_at_the_end_harms_nobody(start_server: StartServer) -> None:  # noqa: F811
    server, ends = await start_server(FakeEngineClient()), Ends()
    submission = Submission(request(), observers=(FailsAtTheEnd(), ends))
    async with server.served.generate(server.served.first, submission) as generation:
        (answer,) = await generation.collect()
    assert answer.text
    assert ends.errors == [None]


async def test_where_an_observer_fails_at_the_beginning_nothing_runs_on(start_server: StartServer) -> None:  # noqa: F811
    engine, ends = FakeEngineClient(is_manual=True), Ends()
    server = await start_server(engine)
    submission = Submission(request(), observers=(ends, FailsAtTheBeginning()))
    with pytest.raises(RuntimeError, match="the observer fails"):
        async with server.served.generate(server.served.first, submission):
            pass
    assert [type(error) for error in ends.errors] == [RuntimeError]
    engine.step(1)
    await eventually(lambda: not engine.running)


async def test_observers_learn_that_a_request_was_refused(start_server: StartServer) -> None:  # noqa: F811
    server, ends = await start_server(FakeEngineClient()), Ends()
    server.served.start_draining()
    with pytest.raises(ApiError, match="shutting down"):
        async with server.served.generate(server.served.first, Submission(request(), observers=(ends,))):
            pass
    assert [type(error) for error in ends.errors] == [ApiError]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/stream", {"type": "generate", "id": "a", "prompt": "ab"}),
        ("/v1/responses", {"type": "response.create", "input": "ab"}),
    ],
)
async def test_a_refused_message_does_not_wake_a_sleeping_model(
    start_server: StartServer,  # noqa: F811
    path: str,
    message: dict[str, str],
) -> None:
    engine = FakeEngineClient()
    server = await start_server(engine, sleep_idle_seconds=0.05)
    async with server.http.ws_connect(server.url + path) as socket:
        await eventually(lambda: engine.lifecycle.calls == [("sleep", False)])
        server.served.start_draining()
        await socket.send_json(message)
        assert (await socket.receive_json())["type"] == "error"
        await asyncio.sleep(0.02)
        assert engine.lifecycle.calls == [("sleep", False)]
