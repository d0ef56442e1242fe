"""The log probabilities of a long prompt are encoded beside the asyncio thread, which the other streams need."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from server.api.encoding import MAX_INLINE_LOGPROBS
from server.api.openai.logprobs import CompletionLogprobs
from tests.server.conftest import RunningServer
from tests.server.support.socket_client import open_socket, read_to_end, send
from tests.server.support.sse_reader import chunks_of

NUM_TOKENS = MAX_INLINE_LOGPROBS // 3 + 2


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Those that have shaped logprobs of a whole prompt, in their own field or before the answer's."""
    seen: list[threading.Thread] = []
    shape, shape_prompt = CompletionLogprobs.shape, CompletionLogprobs.shape_prompt

    def noting(of: Any) -> Any:
        def noted(writer: Any, piece: Any) -> Any:
            if piece.prompt_logprobs is not None:
                seen.append(threading.current_thread())
            return of(writer, piece)

        return noted

    monkeypatch.setattr(CompletionLogprobs, "shape", noting(shape))
    monkeypatch.setattr(CompletionLogprobs, "shape_prompt", noting(shape_prompt))
    return seen


@pytest.mark.parametrize("wish", [{"prompt_logprobs": 2}, {"echo": True, "logprobs": 2}])
@pytest.mark.parametrize("transport", ["sse", "socket"])
async def test_a_long_prompts_logprobs_leave_the_loop_free(
    server: RunningServer, threads: list[threading.Thread], wish: dict[str, Any], transport: str
) -> None:
    body = {"prompt": "a" * NUM_TOKENS, "max_tokens": 2, **wish}
    if transport == "sse":
        assert chunks_of(await server.stream_bytes("/v1/completions", body))
    else:
        async with open_socket(server) as socket:
            await send(socket, type="generate", id="x", **body)
            assert (await read_to_end(socket, "x"))[-1]["type"] == "done"
    assert threads
    assert threading.main_thread() not in threads


async def test_a_short_prompts_logprobs_wait_for_no_thread(
    server: RunningServer, threads: list[threading.Thread]
) -> None:
    await server.stream_bytes("/v1/completions", {"prompt": "ab", "max_tokens": 2, "prompt_logprobs": 2})
    assert set(threads) == {threading.main_thread()}
