"""Records of requests: bounded, oldest out first, whatever still runs."""

from __future__ import annotations

import random

import orjson
import pytest

from sampling.host.params import SamplingParams
from server.generation.generation_request import GenerationRequest
from server.generation.prompt_sources import Conversation, TextPrompt, TokenPrompt
from server.generation.prompts import PreparedPrompt
from server.protocol.errors import ApiError
from server.telemetry.request_json import UNWRITABLE, encode_request
from server.telemetry.request_log import RequestLog
from server.telemetry.request_record import BASE_BYTES, RequestState


def test_they_never_take_more_than_their_bytes_and_the_oldest_go_first() -> None:
    records, generator = RequestLog(40 * BASE_BYTES), random.Random(1)
    for number in range(300):
        record = records.begin((f"request-{number}", "shared"), "ann", "m")
        record.ask(b"x" * generator.randrange(3 * BASE_BYTES))
        assert records.num_bytes <= 40 * BASE_BYTES
        record.finished(None, None)
    kept = records.newest(1000)
    numbers = [record.number for record in kept]
    assert numbers == list(range(299, 299 - len(numbers), -1))
    assert records.num_bytes == sum(record.num_bytes for record in kept)
    assert len(kept) == len(records) > 5
    assert records.find("request-0") is None
    assert records.find("shared") is kept[0]
    assert records.find("shared", numbers[1]) is kept[1]
    assert records.find("request-299", numbers[1]) is None
    assert [record.number for record in records.newest(2, before=numbers[1])] == numbers[2:4]


def test_a_record_that_is_too_large_gives_its_bytes_back_and_notes_nothing_more() -> None:
    records = RequestLog(4 * BASE_BYTES)
    record = records.begin(("a",), "ann", "m")
    record.ask(b"x" * 4 * BASE_BYTES)
    assert not record.is_kept
    assert (records.num_bytes, len(records), record.asked) == (0, 0, b"")
    record.ask(b"x")
    assert records.num_bytes == 0


@pytest.mark.parametrize(
    ("params", "least"),
    [
        (SamplingParams(dry_breaker_ids=tuple(range(1000))), 36_000),
        (SamplingParams(allowed_token_ids=tuple(range(1000))), 36_000),
        (SamplingParams(logit_bias=tuple((token, 0.5) for token in range(1000))), 100_000),
        (SamplingParams(bad_words=tuple((token, 1) for token in range(256))), 256 * 100),
    ],
)
def test_what_the_engine_got_counts_however_short_the_request_was(params: SamplingParams, least: int) -> None:
    records = RequestLog(1 << 20)
    record = records.begin(("a",), "ann", "m")
    record.submitted([PreparedPrompt([1, 2, 3], (params, params), 2), PreparedPrompt([4], (params,), 1)])
    assert least < record.num_bytes < 1.5 * least + 2 * BASE_BYTES


def test_how_it_ended() -> None:
    records = RequestLog(1 << 20)
    refused = records.begin(("a",), "ann", "m")
    try:
        raise ApiError("no", param="n", code="invalid_value")
    except ApiError as error:
        refused.finished(None, error)
    assert (refused.state, refused.error.message if refused.error else "") == (RequestState.REFUSED, "no")
    assert refused.error is not None
    assert refused.error.__traceback__ is None
    left = records.begin(("b",), "ann", "m")
    left.finished(None, GeneratorExit())
    assert (left.state, left.error) == (RequestState.LEFT, None)
    done = records.begin(("c",), "ann", "m")
    assert done.state is RequestState.PREPARING
    done.finished(None, None)
    assert done.state is RequestState.DONE


def test_what_was_asked_has_its_wire_names_and_no_salt() -> None:
    request = GenerationRequest(
        [TextPrompt("once"), TokenPrompt([1, 2])], {"temperature": 0.5, "seed": None}, max_tokens=7, stops=("x",),
        cache_salt="secret", num_choices=2, num_sampled=2,
    )  # fmt: skip
    encoded = encode_request(request)
    assert orjson.loads(encoded) == {
        "prompts": [{"prompt": "once"}, {}],
        "parameters": {"temperature": 0.5, "max_tokens": 7, "n": 2, "stop": ["x"]},
    }
    messages = [{"role": "user", "content": "hi"}]
    chat = GenerationRequest([Conversation(messages, variables={"a": 1})], {})
    (prompt,) = orjson.loads(encode_request(chat))["prompts"]
    assert prompt == {"messages": messages, "chat_template_kwargs": {"a": 1}}
    deep: list[object] = []
    for _ in range(300):
        deep = [deep]
    assert encode_request(GenerationRequest([Conversation(messages, variables={"a": deep})], {})) == UNWRITABLE
