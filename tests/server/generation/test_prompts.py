"""From requests to token ids and parameters, and what is refused on the way; each length is checked once."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sampling.host.params import MAX_SEED, InvalidParameter, SamplingParams
from server.admission.workers import Workers
from server.generation.generation_request import GenerationRequest
from server.generation.prompt_sources import Conversation, TextPrompt, TokenPrompt
from server.generation.prompts import MAX_INLINE_CHARS, MAX_SHORT_CHARS, prepare, prepare_here, work_of
from server.protocol.errors import ApiError
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel, FakeTokenizer

LIMIT = 20  # tokens, prompt and output together


def request(prompt: str = "abc", **changed: Any) -> GenerationRequest:
    return GenerationRequest(**{"prompts": [TextPrompt(prompt)], "sampling": {}, **changed})


def params_of(asked: GenerationRequest, base: SamplingParams | None = None) -> SamplingParams:
    engine = FakeEngineClient(max_model_len=LIMIT)
    (prompt,) = prepare_here(asked, FakeTextModel().model, engine.client, base)
    return prompt.params[0]


@pytest.mark.parametrize(
    ("length", "default", "prompt", "most"),
    [(None, None, "abc", 17), (None, 16, "abc", 16), (None, 16, "a" * 15, 5), (9, 16, "abc", 9), (17, None, "abc", 17)],
)
def test_the_length_of_an_answer(length: int | None, default: int | None, prompt: str, most: int) -> None:
    assert params_of(request(prompt, max_tokens=length, default_max_tokens=default)).max_tokens == most


@pytest.mark.parametrize(
    ("prompt", "length", "param", "message"),
    [
        (
            "a" * 20,
            None,
            "source",
            "However, the prompt has 20 tokens",
        ),
        ("a" * 80, None, "source", "the prompt has 80 characters and so at least 20 tokens"),
        ("abc", 18, "length", "length is 18 and the prompt has 3 tokens"),
        ("abc", 0, "length", "length is 0; it must be at least 1"),
    ],
)
def test_refusals_use_the_names_of_the_route(prompt: str, length: int | None, param: str, message: str) -> None:
    asked = request(prompt, max_tokens=length, max_tokens_parameter="length", prompt_parameter="source")
    with pytest.raises(InvalidParameter, match=message) as refused:
        params_of(asked)
    assert refused.value.param == param


async def test_all_prompts_are_checked_before_any_is_submitted() -> None:
    engine = FakeEngineClient(max_model_len=LIMIT)
    asked = request(prompts=[TextPrompt("fine"), TokenPrompt([1, 999])])
    with pytest.raises(InvalidParameter, match="token id 999"):
        await prepare(asked, FakeTextModel().model, engine.client, Workers())
    assert engine.submitted == []


def test_the_base_holds_where_the_request_says_nothing() -> None:
    base = SamplingParams(temperature=0.5, top_k=3)
    params = params_of(request(sampling={"top_k": 7}, max_tokens=2), base)
    assert (params.temperature, params.top_k, params.max_tokens) == (0.5, 7, 2)


def test_what_the_model_recommends_holds_where_neither_says_anything() -> None:
    engine = FakeEngineClient(max_model_len=LIMIT)
    text_model = FakeTextModel(temperature=0.2, top_p=0.9).model

    def prepared(base: SamplingParams | None = None, **given: float) -> tuple[float, float]:
        (prompt,) = prepare_here(request(sampling=given), text_model, engine.client, base)
        return prompt.params[0].temperature, prompt.params[0].top_p

    assert prepared() == (0.2, 0.9)
    assert prepared(temperature=0.0) == (0.0, 0.9)
    assert prepared(temperature=1.0, top_p=1.0) == (1.0, 1.0)  # given, although they are the sampler's own defaults
    assert prepared(SamplingParams(top_p=0.5)) == (1.0, 0.5)


def test_each_answer_has_its_own_seed() -> None:
    engine = FakeEngineClient(max_model_len=LIMIT)
    asked = request(sampling={"seed": 2**63 - 1}, num_choices=2, num_sampled=3)
    (prompt,) = prepare_here(asked, FakeTextModel().model, engine.client)
    assert [params.seed for params in prompt.params] == [2**63 - 1, -(2**63), -(2**63) + 1]
    assert prompt.num_wanted == 2
    assert prompt.params[0].logprobs == 0  # the best two are chosen by it


def test_a_conversation_is_rendered_by_the_models_template() -> None:
    conversation = Conversation([{"role": "user", "content": "hi"}])
    assert bytes(conversation.encode(FakeTextModel().model)) == b"user:hi\nassistant:"
    assert conversation.num_chars > len("hi")
    assert TokenPrompt([1, 2]).encode(FakeTextModel().model) == [1, 2]


def test_parameters_are_not_checked_again_for_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    check, checked = SamplingParams.__post_init__, []

    def noted(params: SamplingParams) -> None:
        checked.append(params)
        check(params)

    monkeypatch.setattr(SamplingParams, "__post_init__", noted)
    engine = FakeEngineClient(max_model_len=LIMIT)
    sampling = {"seed": MAX_SEED, "logit_bias": ((1, 2.0),)}
    prompts = [TextPrompt("a"), TextPrompt("b")]
    prepared = prepare_here(
        request(prompts=prompts, sampling=sampling, max_tokens=4, num_choices=16, num_sampled=16),
        FakeTextModel().model,
        engine.client,
    )
    assert len(checked) < 4
    seeds = (MAX_SEED, *range(-MAX_SEED - 1, -MAX_SEED + 14))
    expected = tuple(SamplingParams(max_tokens=4, seed=seed, logit_bias=((1, 2.0),)) for seed in seeds)
    assert [prompt.params for prompt in prepared] == [expected, expected]


def test_many_answers_and_biases_belong_in_a_worker_thread() -> None:
    prompts = [TextPrompt("a")] * 64
    assert max(work_of(request()), work_of(request(prompts=prompts))) <= MAX_INLINE_CHARS
    assert work_of(request(prompts=prompts, num_sampled=16)) > MAX_INLINE_CHARS
    assert work_of(request(prompts=prompts, sampling={"logit_bias": ((1, 1.0),) * 1024})) > MAX_INLINE_CHARS


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


class Message(dict[str, Any]):
    """Counts how often messages are looked at."""

    num_looks = 0

    def __getitem__(self, key: str) -> Any:
        Message.num_looks += 1
        return super().__getitem__(key)

    def values(self) -> Any:
        Message.num_looks += 1
        return super().values()


def test_the_work_on_a_conversation_is_known_without_looking_at_all_of_it() -> None:
    said = [{"role": "user", "content": "hi"}]
    tool = {"function": {"name": "f", "parameters": {"text": "a" * 50}}}
    few, many = Conversation(said, tools=[tool] * 3), Conversation(said, tools=[tool] * 20_000)
    assert len("hi") + 3 * 50 < work_of(request(prompts=[few])) <= MAX_INLINE_CHARS
    calls = [{"role": "assistant", "content": "", "tool_calls": [tool] * 20_000}]
    for long in (many, Conversation(calls), Conversation(said, variables={"names": ["a"] * 20_000})):
        assert work_of(request(prompts=[long])) > MAX_SHORT_CHARS
    # Where it is written as JSON to learn its length, that cannot be written.
    assert work_of(request(prompts=[Conversation(said, tools=[{"deep": nested(900)}] * 20)])) > MAX_SHORT_CHARS
    assert work_of(request(prompts=[Conversation([Message(role="user", content="a")] * 10_000)])) > MAX_SHORT_CHARS
    assert Message.num_looks < 1_000


@pytest.mark.parametrize("name", ["content", "reasoning_content", "name", "tool_call_id"])
def test_every_text_of_a_message_is_work(name: str) -> None:
    message = {"role": "assistant", "content": "x", name: "a" * (MAX_SHORT_CHARS + 1)}
    assert work_of(request(prompts=[Conversation([message])])) > MAX_SHORT_CHARS


class NotingTokenizer(FakeTokenizer):
    """Notes the threads in which it tokenises."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def encode(self, text: str, *, add_special_tokens: bool, max_tokens: int | None = None) -> list[int]:
        self.threads.append(threading.current_thread())
        return super().encode(text, add_special_tokens=add_special_tokens, max_tokens=max_tokens)


@pytest.mark.parametrize(("num_words", "is_long"), [(10, False), (10_000, True)])
async def test_a_long_text_that_a_template_makes_of_a_short_one_belongs_in_a_worker_thread(
    num_words: int, is_long: bool
) -> None:
    model, tokenizer = FakeTextModel(f"{{{{ messages[0].content * {num_words} }}}}"), NotingTokenizer()
    model.tokenizer = tokenizer
    asked, workers = request(prompts=[Conversation([{"role": "user", "content": "word "}])]), Workers()
    try:
        (prompt,) = await prepare(asked, model.model, FakeEngineClient(max_model_len=1 << 20).client, workers)
        assert bytes(prompt.token_ids) == b"word " * num_words
        assert [thread is not threading.current_thread() for thread in tokenizer.threads] == [is_long]
    finally:
        workers.close()


@pytest.mark.parametrize("part", ["a tool", "a call", "a variable"])
async def test_what_a_template_is_told_is_refused_where_it_is_nested_too_deeply(part: str) -> None:
    said: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    if part == "a call":
        said[0]["tool_calls"] = [nested(900)]
    conversation = Conversation(
        said,
        tools=[{"deep": nested(900)}] if part == "a tool" else (),
        variables={"deep": nested(900)} if part == "a variable" else {},
    )
    workers, engine = Workers(), FakeEngineClient(max_model_len=512)
    try:
        with pytest.raises(ApiError, match="nested too deeply") as raised:
            await prepare(request(prompts=[conversation]), FakeTextModel().model, engine.client, workers)
        assert (raised.value.status, raised.value.code) == (400, "invalid_messages")
    finally:
        workers.close()
