"""Logprobs on the wire: the shapes, and that of every token there is one, however its text is held back."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest

from engine.interface.types import TokenLogprobs
from server.api.openai.logprobs import ChatLogprobs, CompletionLogprobs
from server.generation.answers import Answer
from server.generation.output_sequence import Delta
from tests.fakes.engine_client import FakeEngineClient, logprob_of, token_logprobs
from tests.fakes.text_model import EOS, FakeTokenizer
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.server.generation.test_generation import submit
from tests.server.support.pacing import read_at_pace
from tests.server.support.socket_client import open_socket, read_to_end, send
from tests.server.support.sse_reader import chunks_of

A, B, C = (ord(letter) for letter in "abc")
MESSAGES = [{"role": "user", "content": "é"}]


def of(*token_ids: int, num_best: int = 0) -> list[TokenLogprobs]:
    return [token_logprobs(token_id, num_best) for token_id in token_ids]


def completion(**changed: Any) -> CompletionLogprobs:
    return CompletionLogprobs(
        FakeTokenizer(), **{"prompts": [[A]], "num_choices": 1, "listed_ids": (), "of_answers": True} | changed
    )


def chat(**changed: Any) -> ChatLogprobs:
    return ChatLogprobs(
        FakeTokenizer(), **{"prompts": [[A]], "num_choices": 1, "listed_ids": (), "of_answers": True} | changed
    )


def delta(token_ids: list[int], logprobs: list[TokenLogprobs], index: int = 0) -> Delta:
    return Delta(index, "", token_ids, None, logprobs)


# ---------------------------------------------------------------- shapes, by hand


def test_a_completion_without_alternatives() -> None:
    assert completion().shape(delta([A, EOS], of(A, EOS))) == {
        "tokens": ["a", "<e>"],
        "token_logprobs": [-98 / 32, -258 / 32],
        "top_logprobs": [{"a": -98 / 32}, {"<e>": -258 / 32}],
        "text_offset": [0, 1],
    }


def test_a_completions_alternatives_have_the_token_itself() -> None:
    logprobs = [TokenLogprobs(-3.0, 9, [(B, -1.0), (C, -2.0)], []), TokenLogprobs(-1.0, 1, [(B, -1.0), (C, -2.0)], [])]
    shape = completion().shape(delta([A, B], logprobs))
    assert shape is not None
    assert shape["top_logprobs"] == [{"b": -1.0, "c": -2.0, "a": -3.0}, {"b": -1.0, "c": -2.0}]


def test_ids_and_ranks_are_told_where_token_ids_are_asked_for() -> None:
    piece = delta([A], [TokenLogprobs(-3.0, 9, [(0xC3, -1.0), (0xE2, -2.0)], [])])
    shape = completion(with_ids=True).shape(piece)
    assert shape is not None
    assert shape["token_ranks"] == [9]
    assert shape["alternatives"] == [
        [{"id": 0xC3, "token": "\ufffd", "logprob": -1.0}, {"id": 0xE2, "token": "\ufffd", "logprob": -2.0}]
    ]
    shape = chat(with_ids=True).shape(piece)
    assert shape is not None
    (entry,) = shape["content"]
    assert (entry["id"], entry["rank"]) == (A, 9)
    assert [alternative["id"] for alternative in entry["top_logprobs"]] == [0xC3, 0xE2]
    assert all("rank" not in alternative for alternative in entry["top_logprobs"])


def test_tokens_are_named_by_their_ids() -> None:
    piece = delta([A], [TokenLogprobs(-3.0, 9, [(0xC3, -1.0), (0xE2, -2.0)], [])])
    shape = completion(names_ids=True).shape(piece)
    assert shape is not None
    assert shape["tokens"] == [f"token_id:{A}"]
    assert shape["top_logprobs"] == [{"token_id:195": -1.0, "token_id:226": -2.0, f"token_id:{A}": -3.0}]
    shape = chat(names_ids=True).shape(piece)
    assert shape is not None
    (entry,) = shape["content"]
    assert (entry["token"], entry["bytes"]) == (f"token_id:{A}", [A])
    assert [alternative["token"] for alternative in entry["top_logprobs"]] == ["token_id:195", "token_id:226"]


def test_what_a_grammar_took_away_is_told_beside_the_ranks() -> None:
    piece = delta([A, B], [TokenLogprobs(-3.0, 9, [], [], 0.75), TokenLogprobs(-1.0, 1, [], [])])
    shape = completion(with_ids=True).shape(piece)
    assert shape is not None
    assert shape["masked_probabilities"] == [0.75, 0.0]
    shape = chat(with_ids=True).shape(piece)
    assert shape is not None
    assert [entry.get("masked_probability") for entry in shape["content"]] == [0.75, None]
    assert "masked_probability" not in str(chat().shape(piece))


def test_the_token_itself_comes_first_among_the_alternatives() -> None:
    logprobs = [TokenLogprobs(-3.0, 9, [(0xC3, -1.0), (0xE2, -2.0)], [])]
    shape = completion().shape(delta([A], logprobs))
    assert shape is not None
    assert list(shape["top_logprobs"][0].items()) == [("a", -3.0), ("\ufffd", -1.0)]
    shape = completion().shape(delta([0xFF], logprobs))
    assert shape is not None
    assert shape["top_logprobs"] == [{"\ufffd": -3.0}]


def test_offsets_count_characters_over_all_pieces_of_a_choice() -> None:
    logprobs = completion(num_choices=2)
    text = "aé🌊b".encode()
    offsets: list[int] = []
    for start in range(0, len(text), 2):
        piece = list(text[start : start + 2])
        for index in (0, 1):
            shape = logprobs.shape(delta(piece, of(*piece), index))
            assert shape is not None
            offsets += shape["text_offset"] if index else []
    assert offsets == [0, 1, 1, 2, 2, 2, 2, 3]
    shape = logprobs.shape(delta([EOS, A], of(EOS, A)))  # a control token has no text
    assert shape is not None
    assert shape["text_offset"] == [4, 4]


def test_a_chats_tokens() -> None:
    logprobs = [TokenLogprobs(-3.0, 9, [(B, -1.0), (0xC3, -2.0)], []), TokenLogprobs(-0.5, 1, [(EOS, -0.5)], [])]
    assert chat().shape(delta([A, EOS], logprobs)) == {
        "content": [
            {
                "token": "a",
                "logprob": -3.0,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "b", "logprob": -1.0, "bytes": [98]},
                    {"token": "\ufffd", "logprob": -2.0, "bytes": [0xC3]},
                ],
            },
            {
                "token": "<e>",
                "logprob": -0.5,
                "bytes": None,
                "top_logprobs": [{"token": "<e>", "logprob": -0.5, "bytes": None}],
            },
        ],
        "refusal": None,
    }


def test_listed_tokens_come_by_id_and_among_the_alternatives() -> None:
    logprobs = [TokenLogprobs(-3.0, 9, [(B, -1.0)], [-1.0, -4.0])]
    listed = {str(B): -1.0, str(EOS): -4.0}
    shape = completion(listed_ids=(B, EOS)).shape(delta([A], logprobs))
    assert shape is not None
    assert shape["listed_logprobs"] == [listed]
    assert shape["top_logprobs"] == [{"b": -1.0, "a": -3.0, "<e>": -4.0}]
    chat_shape = chat(listed_ids=(B, EOS)).shape(delta([A], logprobs))
    assert chat_shape is not None
    assert chat_shape["content"][0]["listed_logprobs"] == listed
    assert [entry["token"] for entry in chat_shape["content"][0]["top_logprobs"]] == ["b", "<e>"]


def test_what_json_cannot_say_is_clamped() -> None:
    logprobs = [TokenLogprobs(-math.inf, 9, [(B, -1e5)], [-math.inf])]
    shape = completion(listed_ids=(C,)).shape(delta([A], logprobs))
    assert shape is not None
    assert shape["token_logprobs"] == [-9999.0]
    assert shape["top_logprobs"] == [{"b": -9999.0, "c": -9999.0, "a": -9999.0}]
    assert shape["listed_logprobs"] == [{str(C): -9999.0}]


def test_prompt_logprobs_have_the_token_first_and_the_best_behind() -> None:
    prompt = [
        None,
        TokenLogprobs(-3.0, 9, [(B, -1.0), (C, -2.0)], []),
        TokenLogprobs(-2.0, 2, [(B, -1.0), (C, -2.0)], []),
    ]
    answer = Answer(3, "", [], "stop", None, prompt)  # type: ignore[arg-type]
    shape = completion(prompts=[[A], [A, EOS, C]], num_choices=2, num_of_prompt=2).shape_prompt(answer)
    assert orjson.loads(orjson.dumps(shape)) == [
        None,
        {
            str(EOS): {"logprob": -3.0, "rank": 9, "decoded_token": "<e>"},
            str(B): {"logprob": -1.0, "rank": 1, "decoded_token": "b"},
            str(C): {"logprob": -2.0, "rank": 2, "decoded_token": "c"},
        },
        {
            str(C): {"logprob": -2.0, "rank": 2, "decoded_token": "c"},
            str(B): {"logprob": -1.0, "rank": 1, "decoded_token": "b"},
        },
    ]


def test_nothing_is_shaped_where_nothing_was_asked_for() -> None:
    piece = delta([A], of(A))
    assert completion(of_answers=False).shape(piece) is None
    assert chat(of_answers=False).shape(piece) is None
    assert completion().shape(delta([], [])) is None
    assert completion().shape_prompt(piece) is None
    assert completion().encode(delta([], [])) == b"null"
    assert completion().encode_prompt(piece) == b""


# ---------------------------------------------------------------- over HTTP


async def test_a_json_completion(server: RunningServer) -> None:
    body = {"prompt": "abc", "logprobs": 2, "logprob_token_ids": [B], "max_tokens": 2, "prompt_logprobs": 1}
    _, answer = await server.post("/v1/completions", body)
    (choice,) = answer["choices"]
    best = {"\x00": -1 / 32, "\x01": -2 / 32}
    assert choice["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-98 / 32, -99 / 32],
        "top_logprobs": [best | {"a": -98 / 32, "b": -99 / 32}, best | {"b": -99 / 32}],
        "text_offset": [0, 1],
        "listed_logprobs": [{str(B): -99 / 32}] * 2,
    }
    best_of_prompt = {"0": {"logprob": -1 / 32, "rank": 1, "decoded_token": "\x00"}}
    assert choice["prompt_logprobs"] == [
        None,
        {str(B): {"logprob": -99 / 32, "rank": 99, "decoded_token": "b"}} | best_of_prompt,
        {str(C): {"logprob": -100 / 32, "rank": 100, "decoded_token": "c"}} | best_of_prompt,
    ]


async def test_a_json_chat(server: RunningServer) -> None:
    body = {"messages": MESSAGES, "logprobs": True, "max_tokens": 2, "prompt_logprobs": 0}
    _, answer = await server.post("/v1/chat/completions", body)
    assert answer["choices"][0]["logprobs"] == {
        "content": [
            {"token": letter, "logprob": logprob_of(ord(letter)), "bytes": [ord(letter)], "top_logprobs": []}
            for letter in "us"
        ],
        "refusal": None,
    }
    assert "prompt_logprobs" not in answer["choices"][0]
    first, second, *_ = answer["prompt_logprobs"]
    assert first is None
    assert second == {str(ord("s")): {"logprob": -116 / 32, "rank": 116, "decoded_token": "s"}}


async def test_prompt_logprobs_alone(server: RunningServer) -> None:
    _, answer = await server.post("/v1/completions", {"prompt": ["ab", "c"], "n": 2, "prompt_logprobs": 0})
    of_b = {str(B): {"logprob": -99 / 32, "rank": 99, "decoded_token": "b"}}
    assert [choice["prompt_logprobs"] for choice in answer["choices"]] == [[None, of_b]] * 2 + [[None]] * 2
    assert [choice["logprobs"] for choice in answer["choices"]] == [None] * 4
    _, answer = await server.post("/v1/completions", {"prompt": "ab"})
    assert answer["choices"][0]["prompt_logprobs"] is None


def joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """The logprobs of a choice's chunks as those of the whole."""
    whole: dict[str, Any] = {}
    for piece in pieces:
        for name, value in piece.items():
            whole[name] = whole.get(name, []) + value if isinstance(value, list) else value
    return whole


STREAMED: list[dict[str, Any]] = [
    {},
    {"stop": "wave!"},
    {"stop": ["d t", "zzz"]},
    {"stop": "END", "include_stop_str_in_output": True},
    {"stop": "E", "min_tokens": 8},
    {"stop_token_ids": [ord("N")]},
    {"max_tokens": 7},
    {"n": 3, "stop": "ND"},
    {"logprob_token_ids": [5, EOS]},
]


@pytest.mark.parametrize("options", STREAMED, ids=str)
@pytest.mark.parametrize("path", ["completions", "chat/completions"])
async def test_a_stream_has_what_the_json_answer_has(
    start_server: StartServer, path: str, options: dict[str, Any]
) -> None:
    text = "wave é🌊 ENd t END"
    server = await start_server(FakeEngineClient(respond=lambda *_: list(text.encode())))
    wish = {"prompt": "x", "logprobs": 2} if path == "completions" else {"messages": MESSAGES, "logprobs": True}
    body = {**wish, "prompt_logprobs": 1, "return_token_ids": True, "max_tokens": 40, **options}
    _, whole = await server.post(f"/v1/{path}", body)
    chunks = chunks_of(await server.stream_bytes(f"/v1/{path}", body))
    for choice in whole["choices"]:
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert joined([piece["logprobs"] for piece in own if piece["logprobs"] is not None]) == choice["logprobs"]
        for piece in own:
            logprobs = piece["logprobs"] or {"tokens": [], "content": []}
            assert len(logprobs.get("tokens", logprobs.get("content"))) == len(piece["token_ids"])
        assert sum(len(piece["token_ids"]) for piece in own) == len(choice["token_ids"])
        if path == "completions":
            assert [piece.get("prompt_logprobs") for piece in own] == [choice["prompt_logprobs"]] + [None] * (
                len(own) - 1
            )
    if path == "chat/completions":
        assert [chunk.get("prompt_logprobs") for chunk in chunks] == [whole["prompt_logprobs"]] + [None] * (
            len(chunks) - 1
        )


@pytest.mark.parametrize("sizes", [[1] * 20, [2] * 10, [3] * 7, [7, 1, 12], [20]])
async def test_every_pace_gives_each_token_its_own(sizes: list[int]) -> None:
    text = "wave é🌊 ENd END tail"
    engine = FakeEngineClient(respond=lambda *_: list(text.encode()), is_manual=True)
    generation = await submit(engine, prompt="xy", max_tokens=100, stop=["END"], logprobs=1, prompt_logprobs=0)
    deltas = await read_at_pace(engine, generation, [*sizes, 20])
    for piece in deltas:
        assert piece.logprobs == of(*piece.token_ids, num_best=1)
    assert [token_id for piece in deltas for token_id in piece.token_ids] == list("wave é🌊 ENd END".encode())
    assert deltas[0].prompt_logprobs == [None, *of(ord("y"))]
    assert [piece.prompt_logprobs for piece in deltas[1:]] == [None] * (len(deltas) - 1)


async def test_an_abort_keeps_what_there_is(start_server: StartServer) -> None:
    engine = FakeEngineClient(is_manual=True)
    server = await start_server(engine)
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="a", prompt="abX", stop="XY", logprobs=0)
        await eventually(lambda: len(engine.running) == 1)
        engine.step(3)
        await eventually(lambda: engine.submitted[0].num_events_read == 1)
        await send(socket, type="cancel", id="a")
        _, *deltas, done = await read_to_end(socket, "a")
    assert done["finish_reason"] == "abort"
    assert joined([piece["logprobs"] or {} for piece in deltas])["tokens"] == ["a", "b", "X"]
    assert "".join(piece["text"] for piece in deltas) == "abX"


async def test_the_websocket_follows_what_it_generates(server: RunningServer) -> None:
    async with open_socket(server) as socket:
        await send(socket, type="generate", id="a", prompt="éb", logprobs=1, prompt_logprobs=0, n=2)
        _, *deltas, _ = await read_to_end(socket, "a")
        for index in (0, 1):
            own = [piece for piece in deltas if piece["index"] == index]
            whole = joined([piece["logprobs"] for piece in own])
            assert whole["tokens"] == ["\ufffd", "\ufffd", "b", "<e>"]
            assert whole["text_offset"] == [0, 0, 1, 2]
            assert [len(piece.get("prompt_logprobs", ())) for piece in own] == [3] + [0] * (len(own) - 1)
        await send(socket, type="generate", id="b", messages=MESSAGES, logprobs=True, max_tokens=1)
        _, only, _ = await read_to_end(socket, "b")
        assert only["logprobs"]["content"][0]["token"] == "u"
        assert "prompt_logprobs" not in only
        await send(socket, type="generate", id="c", prompt="ab")
        _, *deltas, _ = await read_to_end(socket, "c")
        assert all("logprobs" not in piece for piece in deltas)
