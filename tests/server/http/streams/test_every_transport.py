"""One request over every transport: the same text, tokens, log probabilities and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sampling.host.params import SamplingParams
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, server_starter
from tests.server.support.resumable import Follower
from tests.server.support.socket_client import open_socket, read_to_end, send
from tests.server.support.sse_reader import chunks_of

TEXTS = st.text(alphabet='aEND é🌊\n"', min_size=1, max_size=12)


def joined(pieces: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The pieces of one answer as the whole of it: texts and lists put one behind the other."""
    whole: dict[str, Any] = {"text": "", "token_ids": [], "logprobs": {}, "finish_reason": None}
    for piece in pieces:
        message = piece.get("message") or piece.get("delta") or {}
        whole["text"] += piece.get("text") or message.get("content") or ""
        whole["token_ids"] += piece.get("token_ids") or []
        whole["finish_reason"] = piece.get("finish_reason") or whole["finish_reason"]
        for name, values in (piece.get("logprobs") or {}).items():
            if values is not None:
                whole["logprobs"].setdefault(name, []).extend(values)
    return whole


def answers_of(bodies: Sequence[dict[str, Any]], num_answers: int) -> list[dict[str, Any]]:
    """The answers in a JSON body, or in the chunks of a stream."""
    choices = [choice for body in bodies for choice in body["choices"]]
    return [joined(choice for choice in choices if choice["index"] == index) for index in range(num_answers)]


async def over_a_socket(
    server: RunningServer, body: dict[str, Any], num_answers: int, **more: Any
) -> list[dict[str, Any]]:
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="a", **body, **more)
        messages = await read_to_end(socket, "a")
    done = messages[-1]
    answers = []
    for index in range(num_answers):
        answer = joined(message for message in messages if message.get("index") == index)
        answers.append(answer | {"finish_reason": done.get("finish_reasons", [done["finish_reason"]])[index]})
    return answers


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_every_transport_gives_the_same_answers(data: st.DataObject) -> None:
    text = data.draw(TEXTS)
    n = data.draw(st.sampled_from([1, 3]))
    is_chat = data.draw(st.booleans())
    body: dict[str, Any] = {
        "n": n,
        "seed": 0,
        "return_token_ids": True,
        "stop": data.draw(st.lists(st.sampled_from(["END", "é", "a ", '"🌊']), max_size=2)),
        "include_stop_str_in_output": data.draw(st.booleans()),
        "max_tokens": data.draw(st.sampled_from([4, 64])),
        "stream_interval": data.draw(st.sampled_from([1, 3])),
    }
    has_logprobs = data.draw(st.booleans())
    if is_chat:
        path, num_answers = "/v1/chat/completions", n
        body |= {"messages": [{"role": "user", "content": "x"}], "logprobs": has_logprobs}
    else:
        path, num_answers = "/v1/completions", 2 * n
        body |= {"prompt": ["x", "yé"], "echo": data.draw(st.booleans()), "logprobs": 2 if has_logprobs else None}

    def respond(_prompt: Sequence[int], params: SamplingParams) -> list[int]:
        return list(text.encode())[params.seed or 0 :]  # answers differ; some begin within a character

    async def ask() -> None:
        async with server_starter() as start:
            server = await start(FakeEngineClient(respond=respond))
            status, whole = await server.post(path, body)
            assert status == 200, whole
            expected = answers_of([whole], num_answers)
            assert all(answer["finish_reason"] for answer in expected)
            assert answers_of(chunks_of(await server.stream_bytes(path, body)), num_answers) == expected
            follower = Follower(server)
            await follower.begin(path, body)
            assert answers_of(follower.chunks, num_answers) == expected
            assert await over_a_socket(server, body, num_answers) == expected
            assert await over_a_socket(server, body, num_answers, resumable=True) == expected

    asyncio.run(ask())
