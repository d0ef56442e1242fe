"""POST /v1/completions: object shapes, streaming, counts."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from sampling.host.params import SamplingParams
from server.startup.version import system_fingerprint
from server.text.infill import Infill
from tests.fakes.engine_client import FakeEngineClient, logprob_of
from tests.fakes.text_model import EOS, FakeTextModel, FakeTokenizer
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.support.sse_reader import SseReader, chunks_of, read_all


def ids(text: str) -> list[int]:
    return list(text.encode())


# Of a choice for which nothing is asked.
NOTHING = {"prompt_logprobs": None, "token_ids": None, "prompt_token_ids": None}


async def test_a_json_answer_has_the_shape_of_openai(server: RunningServer) -> None:
    status, body = await server.post("/v1/completions", {"model": "fake", "prompt": "tide", "max_tokens": 10})
    assert status == 200
    assert body.pop("id").startswith("cmpl-")
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "text_completion",
        "model": "fake",
        "system_fingerprint": system_fingerprint(),
        "choices": [
            {
                "index": 0,
                "text": "tide",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "matched_stop": EOS,
                **NOTHING,
            }
        ],
        "usage": {
            "prompt_tokens": 4,
            "completion_tokens": 5,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "metrics": None,
        "kv_transfer_params": None,
    }


async def test_max_tokens_ends_with_length_and_defaults_to_16(server: RunningServer) -> None:
    _, body = await server.post("/v1/completions", {"prompt": "abcdef", "max_tokens": 3})
    assert body["choices"][0] == {
        "index": 0,
        "text": "abc",
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
        "matched_stop": None,
        **NOTHING,
    }
    _, body = await server.post("/v1/completions", {"prompt": "x" * 40})
    assert body["choices"][0]["text"] == "x" * 16
    assert body["usage"]["completion_tokens"] == 16


async def test_the_default_length_fits_a_prompt_near_the_limit(server: RunningServer) -> None:
    _, body = await server.post("/v1/completions", {"prompt": "x" * 510})
    assert body["choices"][0]["text"] == "xx"


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["ab"]),
        (["ab", "cd"], ["ab", "cd"]),
        ([97, 98], ["ab"]),
        ([[97, 98], [99]], ["ab", "c"]),
    ],
)
async def test_prompts_come_in_four_shapes(server: RunningServer, prompt: object, texts: list[str]) -> None:
    _, body = await server.post("/v1/completions", {"prompt": prompt})
    assert [choice["text"] for choice in body["choices"]] == texts
    assert [choice["index"] for choice in body["choices"]] == list(range(len(texts)))


async def test_choices_are_numbered_by_prompt_and_a_prompt_counts_once(start_server: StartServer) -> None:
    engine = FakeEngineClient(respond=lambda prompt, params: [prompt[0], *ids(str(params.seed))])
    server = await start_server(engine)
    engine.num_cached_tokens = 1
    _, body = await server.post("/v1/completions", {"prompt": ["ab", "cd"], "n": 3, "seed": 7})
    assert [choice["text"] for choice in body["choices"]] == ["a7", "a8", "a9", "c7", "c8", "c9"]
    assert body["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 18,
        "total_tokens": 22,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


async def test_the_last_seed_wraps_instead_of_failing(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=lambda _, params: ids(str(params.seed))))
    _, body = await server.post("/v1/completions", {"prompt": "a", "n": 2, "seed": 2**63 - 1, "max_tokens": 30})
    assert [choice["text"] for choice in body["choices"]] == [str(2**63 - 1), str(-(2**63))]


async def test_all_parameters_reach_the_engine(server: RunningServer) -> None:
    body = {
        "prompt": "a",
        "max_tokens": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "seed": 3,
        "stop_token_ids": [65],
        "ignore_eos": True,
        "user": "someone",
    }
    assert (await server.post("/v1/completions", body))[0] == 200
    params = server.engine.submitted[0].params
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (5, 0.5, 0.9, 40)
    assert (params.min_p, params.seed, params.stop_token_ids, params.ignore_eos) == (0.1, 3, (65,), True)


async def test_echo_begins_each_answer_with_its_prompt(start_server: StartServer) -> None:
    def respond(prompt: list[int], params: SamplingParams) -> list[int]:
        return [0xA9, EOS] if prompt[-1] == 0xC3 else [*"é".encode(), EOS]

    server = await start_server(FakeEngineClient(respond=respond))
    body = {"prompt": ["ab", [99, 0xC3]], "echo": True, "stop": "b", "logprobs": 1}
    _, answer = await server.post("/v1/completions", body)
    # The first byte of é, with which a prompt ends, is told with the character, which the answer completes.
    assert [choice["text"] for choice in answer["choices"]] == ["abé", "cé"]
    first = answer["choices"][0]["logprobs"]
    assert first["tokens"] == ["a", "b", "\ufffd", "\ufffd", "<e>"]
    assert first["token_logprobs"][0] is None is first["top_logprobs"][0]
    assert all(isinstance(logprob, float) for logprob in first["token_logprobs"][1:])
    assert [len(alternatives) for alternatives in first["top_logprobs"][1:]] == [
        2,
        2,
        2,
        2,
    ]  # the token and the best one
    assert first["text_offset"] == [0, 1, 2, 2, 3]
    assert answer["choices"][0]["prompt_logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 5
    texts, tokens = ["", ""], [0, 0]
    for chunk in chunks_of(await server.stream_bytes("/v1/completions", body)):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
            tokens[choice["index"]] += len((choice["logprobs"] or {"tokens": ()})["tokens"])
    assert texts == [choice["text"] for choice in answer["choices"]]
    assert tokens == [len(choice["logprobs"]["tokens"]) for choice in answer["choices"]]


async def test_echo_is_complete_where_the_answer_is_empty(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=lambda prompt, params: [EOS]))
    _, answer = await server.post("/v1/completions", {"prompt": "ab", "echo": True})
    assert answer["choices"][0]["text"] == "ab"


async def test_a_prompt_may_be_without_the_tokenizers_own_tokens(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def encode(_tokenizer: FakeTokenizer, text: str, *, add_special_tokens: bool, **_limit: Any) -> list[int]:
        asked.append(add_special_tokens)
        return ids(text)

    monkeypatch.setattr(FakeTokenizer, "encode", encode)
    for parameters in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
        assert (await server.post("/v1/completions", {"prompt": "tide", **parameters}))[0] == 200
    assert asked == [True, True, False]


async def test_no_tokens_at_all_are_the_prompt_and_its_logprobs(start_server: StartServer) -> None:
    """How lm-eval asks for the log probabilities of a text."""
    server = await start_server(FakeEngineClient(respond=lambda prompt, params: [EOS]))
    body = {"prompt": ["ab", "cde"], "echo": True, "max_tokens": 0, "logprobs": 1, "n": 2, "stop": "b"}
    status, answer = await server.post("/v1/completions", {**body, "return_token_ids": True})
    assert status == 200, answer
    choices = answer["choices"]
    assert [choice["text"] for choice in choices] == ["ab", "ab", "cde", "cde"]
    assert [choice["logprobs"]["tokens"] for choice in choices[1:3]] == [["a", "b"], ["c", "d", "e"]]
    assert choices[2]["logprobs"]["token_logprobs"] == [None, logprob_of(ord("d")), logprob_of(ord("e"))]
    assert {(choice["finish_reason"], str(choice["token_ids"])) for choice in choices} == {("length", "[]")}
    assert answer["usage"]["completion_tokens"] == 0
    streamed = chunks_of(await server.stream_bytes("/v1/completions", body))
    assert sorted(chunk["choices"][0]["text"] for chunk in streamed) == ["ab", "ab", "cde", "cde"]


@pytest.mark.parametrize("other", [{}, {"echo": True, "num_prompt_output_tokens": 1}])
async def test_no_tokens_without_the_prompt_are_refused(server: RunningServer, other: dict[str, Any]) -> None:
    status, answer = await server.post("/v1/completions", {"prompt": "ab", "max_tokens": 0, **other})
    assert (status, answer["error"]["param"]) == (400, "max_tokens")


@pytest.mark.parametrize(("most", "kept"), [(3, "cde"), (9, "abcde"), (-1, "abcde")])
async def test_a_prompt_is_cut_to_its_last_tokens(server: RunningServer, most: int, kept: str) -> None:
    body = {"prompt": "abcde", "truncate_prompt_tokens": most, "echo": True, "max_tokens": 1}
    _, answer = await server.post("/v1/completions", body)
    assert (answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]) == (kept + kept[0], len(kept))


@pytest.mark.parametrize(("most", "kept"), [(3, "abc"), (9, "abcde")])
async def test_a_prompt_is_cut_to_its_first_tokens(server: RunningServer, most: int, kept: str) -> None:
    body = {
        "prompt": "abcde",
        "truncate_prompt_tokens": most,
        "truncation_side": "right",
        "echo": True,
        "max_tokens": 1,
    }
    _, answer = await server.post("/v1/completions", body)
    assert (answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]) == (kept + kept[0], len(kept))


async def test_a_whole_answer_has_the_fields_that_vllms_clients_look_for(server: RunningServer) -> None:
    _, answer = await server.post("/v1/completions", {"prompt": "ab", "max_tokens": 1})
    (choice,) = answer["choices"]
    assert choice.items() >= NOTHING.items()
    assert (answer["metrics"], answer["kv_transfer_params"]) == (None, None)
    asked = {"return_token_ids": True, "prompt_logprobs": 0, "include_metrics": True}
    _, answer = await server.post("/v1/completions", {"prompt": "ab", "max_tokens": 1, **asked})
    (choice,) = answer["choices"]
    assert None not in (choice["token_ids"], choice["prompt_token_ids"], choice["prompt_logprobs"], answer["metrics"])


async def test_minus_one_cuts_to_what_leaves_room_for_the_answer(server: RunningServer) -> None:
    body = {"prompt": "x" * 5000, "truncate_prompt_tokens": -1, "max_tokens": 12}
    status, answer = await server.post("/v1/completions", body)
    assert (status, answer["usage"]["prompt_tokens"]) == (200, 512 - 12)
    messages = [{"role": "user", "content": "x" * 5000}]
    status, answer = await server.post("/v1/chat/completions", {**body, "messages": messages, "prompt": None})
    assert (status, answer["usage"]["prompt_tokens"]) == (200, 512 - 12)


async def test_a_gap_is_shown_by_the_models_own_tokens(start_server: StartServer) -> None:
    text_model = FakeTextModel()
    text_model.infill = Infill(256, 258, 259, end_ids=(250,))
    server = await start_server(text_model=text_model)
    assert (await server.post("/v1/completions", {"prompt": ["ab", [99]], "suffix": "d"}))[0] == 200
    first, second = server.engine.submitted
    assert first.prompt_token_ids == [256, *ids("ab"), 258, *ids("d"), 259]
    assert second.prompt_token_ids == [256, 99, 258, *ids("d"), 259]
    assert first.params.stop_token_ids == (250,)


async def test_parameters_at_their_neutral_value_are_accepted(server: RunningServer) -> None:
    body = {
        "prompt": "a",
        "best_of": 1,
        "echo": False,
        "suffix": "",
        "logprobs": None,
        "logit_bias": {},
        "bad_words": [],
        "dry_sequence_breakers": [],
        "presence_penalty": 0.0,
        "frequency_penalty": 0,
        "response_format": {"type": "text"},
        "store": False,
        "temperature": None,
        "stop": None,
        "stream": None,
    }
    status, answer = await server.post("/v1/completions", body)
    assert (status, answer["choices"][0]["text"]) == (200, "a")


async def test_a_stop_token_is_counted_and_not_shown(server: RunningServer) -> None:
    _, body = await server.post("/v1/completions", {"prompt": "abcd", "stop_token_ids": [99], "return_token_ids": True})
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")
    assert choice["token_ids"] == [97, 98, 99]
    assert choice["prompt_token_ids"] == [97, 98, 99, 100]
    assert body["usage"]["completion_tokens"] == 3


async def test_a_stop_string_ends_the_text_and_aborts_the_engine(server: RunningServer) -> None:
    body = {"prompt": "one two three", "stop": ["wo t", "zzz"], "max_tokens": 100, "ignore_eos": True}
    _, answer = await server.post("/v1/completions", body)
    assert answer["choices"][0]["text"] == "one t"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == len("one two t")
    assert len(server.engine.aborted) == 1
    _, answer = await server.post("/v1/completions", {**body, "include_stop_str_in_output": True})
    assert answer["choices"][0]["text"] == "one two t"


async def test_what_was_held_back_for_a_stop_string_comes_at_the_end(server: RunningServer) -> None:
    _, answer = await server.post("/v1/completions", {"prompt": "abcX", "stop": "XYZ"})
    assert answer["choices"][0]["text"] == "abcX"
    _, answer = await server.post("/v1/completions", {"prompt": "abXY", "stop": "XYZ", "max_tokens": 4})
    assert answer["choices"][0] == {
        "index": 0,
        "text": "abXY",
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
        "matched_stop": None,
        **NOTHING,
    }


async def test_stream_chunks(server: RunningServer) -> None:
    data = await server.stream_bytes("/v1/completions", {"prompt": "hé", "stream_options": {"include_usage": True}})
    assert data.startswith(b": ping\n\n")
    *chunks, last = chunks_of(data)
    assert len({chunk["id"] for chunk in [*chunks, last]}) == 1
    assert all(chunk["object"] == "text_completion" and chunk["usage"] is None for chunk in chunks)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hé"
    assert all(chunk["choices"][0]["text"] for chunk in chunks[:-1])
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4


async def test_without_include_usage_no_chunk_mentions_it(server: RunningServer) -> None:
    chunks = chunks_of(await server.stream_bytes("/v1/completions", {"prompt": "ab"}))
    assert all("usage" not in chunk for chunk in chunks)


async def test_streamed_token_ids_are_all_the_tokens(server: RunningServer) -> None:
    chunks = chunks_of(await server.stream_bytes("/v1/completions", {"prompt": "héé", "return_token_ids": True}))
    token_ids = [token_id for chunk in chunks for token_id in chunk["choices"][0]["token_ids"]]
    assert token_ids == [*ids("héé"), EOS]
    assert [chunk["choices"][0].get("prompt_token_ids") for chunk in chunks] == [ids("héé")] + [None] * (
        len(chunks) - 1
    )


async def test_several_choices_in_one_stream(server: RunningServer) -> None:
    body = {"prompt": ["abc", "defgh"], "n": 2, "stop": "g", "stream_options": {"include_usage": True}}
    *chunks, last = chunks_of(await server.stream_bytes("/v1/completions", body))
    texts = [""] * 4
    finishes: list[int] = []
    for chunk in chunks:
        choice = chunk["choices"][0]
        assert choice["index"] not in finishes
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"] is not None:
            finishes.append(choice["index"])
    assert texts == ["abc", "abc", "def", "def"]
    assert sorted(finishes) == [0, 1, 2, 3]
    assert last["usage"]["prompt_tokens"] == 8
    assert last["usage"]["completion_tokens"] == 4 + 4 + 4 + 4


async def test_the_bytes_give_the_same_events_whatever_the_split(server: RunningServer) -> None:
    data = await server.stream_bytes(
        "/v1/completions", {"prompt": "a é 🌊\n\ndata: x", "stream_options": {"include_usage": True}, "max_tokens": 40}
    )
    whole = read_all(data)
    assert whole[0] == ("comment", "ping")
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks_of(data)[:-1]) == "a é 🌊\n\ndata: x"
    for offset in range(len(data) + 1):
        reader = SseReader()
        assert reader.feed(data[:offset]) + reader.feed(data[offset:]) == whole


async def test_headers_of_a_stream(server: RunningServer) -> None:
    body = {"prompt": "a", "stream": True}
    async with server.http.post(
        server.url + "/v1/completions", json=body, headers={"X-Request-Id": "my-id.1"}
    ) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["X-Accel-Buffering"] == "no"
        assert response.headers["X-Request-Id"] == "my-id.1"
        assert b'"id":"cmpl-my-id.1"' in await response.read()


async def test_pings_come_before_the_first_token_and_between_tokens(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine, ping_interval=0.02)
    async with server.http.post(server.url + "/v1/completions", json={"prompt": "ab", "stream": True}) as response:
        reader = SseReader()
        kinds: list[str] = []

        async def read_until(wanted: list[str]) -> None:
            while kinds[-len(wanted) :] != wanted:
                kinds.extend(record.kind for record in reader.feed(await response.content.readany()))

        async with asyncio.timeout(PATIENCE_S):
            await read_until(["comment", "comment", "comment"])
            engine.step()
            await read_until(["data", "comment", "comment"])
            engine.step(2)
            await response.read()


async def test_a_slow_reader_gets_merged_deltas(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    async with server.http.post(server.url + "/v1/completions", json={"prompt": "abcdef", "stream": True}) as response:
        await eventually(lambda: len(engine.running) == 1)
        engine.step(5)  # within one turn of the loop: the reader cannot have read between
        await eventually(lambda: engine.submitted[0].num_events_read == 1)
        engine.step(2)
        chunks = chunks_of(await response.read())
    assert [chunk["choices"][0]["text"] for chunk in chunks] == [
        "abcde",
        "f",
        "",
    ]  # the last two steps came to one that keeps up


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_disconnect_aborts(start_server: StartServer, stream: bool, n: int) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)

    async def ask() -> None:
        async with server.http.post(
            server.url + "/v1/completions", json={"prompt": "abcdef", "stream": stream, "n": n}
        ) as response:
            await response.read()

    asking = asyncio.create_task(ask())
    await eventually(lambda: len(engine.running) == n)
    engine.step()
    await asyncio.sleep(0.01)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await server.assert_all_streams_ended()
    assert len(engine.aborted) == n


async def test_a_stalled_reader_is_cut_and_aborted(start_server: StartServer) -> None:
    engine = FakeEngineClient(respond=lambda *_: [97] * 500, is_manual=True)
    text_model = FakeTextModel()
    text_model.tokenizer.token_bytes = (b"x" * 65536,) * 260  # a few hundred fill the kernel's buffers
    server = await start_server(engine, text_model=text_model, write_timeout=0.1)
    _, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]), limit=1024)
    body = b'{"prompt":"a","stream":true,"max_tokens":500}'
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await eventually(lambda: len(engine.running) == 1)
    for _ in range(400):
        engine.step()
        await asyncio.sleep(0)
    await server.assert_all_streams_ended()
    assert engine.aborted == ["request-0"]
    writer.close()


async def test_an_engine_error_within_a_stream_is_one_event_and_the_end(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    async with server.http.post(server.url + "/v1/completions", json={"prompt": "abc", "stream": True}) as response:
        await eventually(lambda: len(engine.running) == 1)
        engine.step()
        await eventually(lambda: engine.submitted[0].num_events_read == 1)
        engine.fail("the device is gone")
        records = [record.text for record in read_all(await response.read()) if record.kind == "data"]
    assert len(records) == 2
    assert records[1] == (
        '{"error":{"message":"the device is gone","type":"server_error","param":null,"code":"engine_failed"}}'
    )


async def test_an_engine_error_without_a_stream_is_a_503(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    asking = asyncio.create_task(server.post("/v1/completions", {"prompt": "abc"}))
    await eventually(lambda: len(engine.running) == 1)
    engine.fail("the device is gone")
    status, body = await asking
    assert (status, body["error"]["code"]) == (503, "engine_failed")
    assert (await server.get("/liveness"))[0] == 503
    assert (await server.post("/v1/completions", {"prompt": "abc"}))[0] == 503


async def test_a_full_queue_is_429_and_leaves_nothing_behind(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True, max_num_queued=2)
    server = await start_server(engine)
    async with server.http.post(server.url + "/v1/completions", json={"prompt": "abc", "n": 3}) as response:
        assert response.status == 429
        assert response.headers["Retry-After"] == "1"
        error = (await response.json())["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
    assert "limit is 2" in error["message"]
    assert len(engine.aborted) == 2
    assert engine.running == {}


async def test_keep_alive_survives_an_error(server: RunningServer) -> None:
    connector = aiohttp.TCPConnector(limit=1)
    async with aiohttp.ClientSession(connector=connector) as session:
        for _ in range(3):
            async with session.post(server.url + "/v1/completions", data=b"{") as response:
                assert (await response.json())["error"]["code"] == "invalid_json"
            async with session.post(server.url + "/v1/completions", json={"prompt": "ok"}) as response:
                assert (await response.json())["choices"][0]["text"] == "ok"


async def test_priority_salt_and_timeout_reach_the_engine(server: RunningServer) -> None:
    body = {"prompt": "tide", "priority": -3, "cache_salt": "tenant", "timeout": 5, "n": 2}
    status, _ = await server.post("/v1/completions", body)
    assert status == 200
    told = {"priority": -3, "cache_salt": "tenant", "timeout": 5.0}
    assert list(server.engine.options.values()) == [told, told]


@pytest.mark.parametrize(
    ("wish", "param", "words"),
    [
        ({"timeout": 0}, "timeout", "greater than 0"),
        ({"timeout": "5"}, "timeout", "number"),
        ({"cache_salt": ""}, "cache_salt", "at least 1 character"),
        ({"cache_salt": "x" * 257}, "cache_salt", "at most 256 characters"),
    ],
)
async def test_salt_and_timeout_have_limits(
    server: RunningServer, wish: dict[str, object], param: str, words: str
) -> None:
    status, body = await server.post("/v1/completions", {"prompt": "tide", **wish})
    assert (status, body["error"]["param"]) == (400, param)
    assert words in body["error"]["message"]
