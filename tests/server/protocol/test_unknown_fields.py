"""Which parameters that are no fields are passed over, told of, and refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.openai.chat_request import ChatCompletionRequest, Message
from server.api.openai.completion_request import CompletionRequest
from server.protocol import base_models
from server.protocol.base_models import MAX_IGNORED, is_typo
from server.protocol.errors import ApiError, to_api_error
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import StartServer

MESSAGES = [{"role": "user", "content": "a"}]

# What a chat and a completion become on their way, as they were recorded. The clients named model, text and max_tokens.
OF_ROUTERS: dict[str, dict[str, Any]] = {
    "sglang-router 0.3": {
        "model": "m", "logprobs": False, "max_completion_tokens": 5, "stream": False, "no_stop_trim": False,
        "ignore_eos": False, "continue_final_message": False, "skip_special_tokens": True, "separate_reasoning": True,
        "stream_reasoning": True, "return_hidden_states": False, "messages": MESSAGES,
    },
    "sglang-router 0.3, completion": {
        "model": "m", "prompt": "a", "max_tokens": 5, "stream": False, "echo": False, "no_stop_trim": False,
        "ignore_eos": False, "skip_special_tokens": True, "return_hidden_states": False,
    },
    "vllm-router 0.1": {
        "model": "m", "stream": False, "max_tokens": 5, "logprobs": False, "no_stop_trim": False, "ignore_eos": False,
        "continue_final_message": False, "skip_special_tokens": True, "separate_reasoning": True,
        "stream_reasoning": True, "return_hidden_states": False, "include_reasoning": True, "messages": MESSAGES,
    },
    "vllm-router 0.1, completion": {
        "model": "m", "prompt": "a", "max_tokens": 5, "stream": False, "echo": False, "no_stop_trim": False,
        "ignore_eos": False, "skip_special_tokens": True, "return_hidden_states": False,
    },
}  # fmt: skip


def parsed(**parameters: Any) -> tuple[str, ...]:
    """What both kinds of body ignore aloud."""
    of_chat = ChatCompletionRequest.parse({"messages": MESSAGES, **parameters}).ignored
    assert CompletionRequest.parse({"prompt": "a", **parameters}).ignored == of_chat
    return of_chat


def refusal(**parameters: Any) -> ApiError:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of several kinds
        CompletionRequest.parse({"prompt": "a", **parameters})
    return to_api_error(caught.value)


@pytest.mark.parametrize("body", OF_ROUTERS.values(), ids=OF_ROUTERS)
def test_what_a_router_makes_of_a_body_passes_in_silence(body: dict[str, Any]) -> None:
    form = ChatCompletionRequest if "messages" in body else CompletionRequest
    assert form.parse(body).ignored == ()


# What pages and libraries of other servers send with every message, where nobody has changed a setting.
OF_CLIENTS: dict[str, dict[str, Any]] = {
    "llama.cpp": {
        "samplers": [], "dynatemp_range": 0, "dynatemp_exponent": 1, "typ_p": 1, "repeat_last_n": 64,
        "repeat_penalty": 1, "mirostat": 0,
        "mirostat_tau": 5, "mirostat_eta": 0.1, "n_probs": 0, "min_keep": 0, "n_keep": 0, "id_slot": -1,
        "n_predict": -1, "n_indent": 0,
        "cache_prompt": True, "timings_per_token": False, "reasoning_format": "auto", "return_progress": False,
    },
    "OpenRouter": {"models": [], "route": "fallback", "transforms": [], "top_a": 0, "plugins": [], "provider": {}},
    "vLLM": {
        "use_beam_search": False, "length_penalty": 1.0, "skip_special_tokens": True, "detokenize": True,
        "spaces_between_special_tokens": True, "guided_json": None, "mm_processor_kwargs": None,
        "kv_transfer_params": None, "return_tokens_as_token_ids": False, "prompt_embeds": None, "early_stopping": False,
        "truncate_prompt_tokens": None, "add_special_tokens": False,
    },
    "SGLang": {
        "regex": None, "ebnf": None, "lora_path": None, "session_params": None, "stop_regex": None, "rid": None,
        "bootstrap_host": None, "custom_logit_processor": None, "separate_reasoning": True,
        "return_hidden_states": False,
    },
    "Ollama": {"options": {}, "keep_alive": None, "format": "", "raw": False, "think": False, "images": []},
    "text-generation-webui": {
        "do_sample": True, "num_beams": 1, "penalty_alpha": 0, "guidance_scale": 1, "tfs": None, "mirostat_mode": None,
        "negative_prompt": "", "custom_token_bans": "", "ban_eos_token": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("parameters", OF_CLIENTS.values(), ids=OF_CLIENTS)
def test_what_other_servers_clients_send_at_its_default_passes_in_silence(parameters: dict[str, Any]) -> None:
    assert parsed(**parameters) == ()


def test_another_name_with_other_values_is_told() -> None:
    assert 'did you mean "structured_outputs"' in refusal(guided_json={}, guided_regex="a").message


@pytest.mark.parametrize(
    ("theirs", "own", "value"),
    [
        ("typ_p", "typical_p", 0.5),
        ("repeat_penalty", "repetition_penalty", 1.5),
        ("n_predict", "max_tokens", 5),
        ("max_new_tokens", "max_tokens", 5),
        ("n_cmpl", "n", 2),
    ],
)
def test_another_name_with_the_same_values_is_that_parameter(theirs: str, own: str, value: Any) -> None:
    request = CompletionRequest.parse({"prompt": "a", theirs: value})
    assert (getattr(request, own), request.ignored) == (value, ())
    assert f'did you mean "{own}"' in refusal(**{own: value, theirs: value}).message


@pytest.mark.parametrize("name", ["n_predict", "max_tokens"])
def test_a_length_of_minus_one_is_no_limit(name: str) -> None:
    request = CompletionRequest.parse({"prompt": "a", name: -1})
    assert (request.max_tokens, request.is_unlimited) == (None, True)
    assert not CompletionRequest.parse({"prompt": "a"}).is_unlimited
    assert CompletionRequest.parse({"prompt": "a", "max_tokens": -2}).max_tokens == -2


async def test_llama_cpps_length_may_go_beyond_the_context(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=lambda *_: [97] * 1000))
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": "ab"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "tide"}]},
    }
    for path, body in bodies.items():
        status, answer = await server.post(path, {**body, "n_predict": 5000})
        assert (status, answer["choices"][0]["finish_reason"]) == (200, "length")
        assert answer["usage"]["total_tokens"] == 512
        assert (await server.post(path, {**body, "max_tokens": 5000}))[0] == 400
        assert (await server.post(path, {**body, "n_predict": -5}))[0] == 400
        _, answer = await server.post(path, {**body, "n_predict": 3})
        assert answer["usage"]["completion_tokens"] == 3


def test_fallback_models_are_told_of() -> None:
    assert parsed(models=["a", "b"]) == ("models",)


@pytest.mark.parametrize("nothing", [None, False, [], {}, ""])
def test_what_asks_for_nothing_passes_in_silence(nothing: Any) -> None:
    assert parsed(colour=nothing) == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [("colour", "blue"), ("colour", 0), ("metadata", {"a": "b"}), ("store", True), ("service_tier", "flex"),
     ("skip_special_tokens", 1), ("skip_special_tokens", False), ("return_hidden_states", True), ("top_a", 0.5)],
)  # fmt: skip
def test_other_strangers_are_told_of(name: str, value: Any) -> None:
    if name == "top_a":  # changes the answer
        assert "top_a is 0.5" in refusal(top_a=value).message
    else:
        assert parsed(**{name: value}) == (name,)


def test_the_order_is_that_of_the_body() -> None:
    assert parsed(b=1, a=2, c=None, d=4) == ("b", "a", "d")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("temprature", "temperature"), ("temperatura", "temperature"), ("tmeperature", "temperature"),
     ("temperatures", "temperature"), ("maxTokens", "max_tokens"), ("max-tokens", "max_tokens"),
     ("Top_P", "top_p"), ("strem", "stream")],
)  # fmt: skip
def test_a_slip_is_refused_with_the_name_that_was_meant(name: str, meant: str) -> None:
    error = refusal(**{name: 1})
    assert (error.param, error.code) == (name, "unknown_parameter")
    assert error.message.endswith(f'did you mean "{meant}"?')


def test_fields_of_the_other_route_are_refused() -> None:
    assert refusal(messages=MESSAGES).param == "messages"
    with pytest.raises(ValueError, match="prompt"):
        ChatCompletionRequest.parse({"messages": MESSAGES, "prompt": "a"})


def test_a_message_may_have_whatever_a_library_keeps_in_it() -> None:
    message = {"role": "assistant", "content": "a", "parsed": {"x": 1}, "refusal": None, "provider": "p"}
    content = [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
    request = ChatCompletionRequest.parse({"messages": [message, {"role": "user", "content": content}, message]})
    assert request.ignored == ("messages[].parsed", "messages[].provider")
    assert [told.to_template("messages[]") for told in request.messages][:2] == [
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "b"},
    ]


def test_a_name_of_many_messages_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(base_models, "is_typo", lambda *names: compared.append(names))
    message = {"role": "user", "content": "a", "j": 1, "z" * 70: 1, "z" * 71: 1}
    body = {"messages": [message] * 100, "j": 1}
    assert ChatCompletionRequest.parse(body).ignored == ("j", "messages[].j", "messages[]." + "z" * 64)
    of_body, of_message = ChatCompletionRequest.model_fields.keys(), Message.model_fields.keys()
    assert len(compared) == len(of_body) + 2 * len(of_message) == len(set(compared)) + len(of_body & of_message)


def test_a_name_that_asked_for_nothing_first_is_looked_at_again() -> None:
    asked: list[Any] = [{"nam": None}, {"x": []}, {"x": 1}, {"nam": 1}]
    messages = [{"role": "user", "content": "a", **part} for part in asked]
    assert ChatCompletionRequest.parse({"messages": messages[:3]}).ignored == ("messages[].x",)
    with pytest.raises(ValueError, match="nam") as caught:
        ChatCompletionRequest.parse({"messages": messages})
    assert 'did you mean "name"' in to_api_error(caught.value).message


def test_names_are_cut_and_counted() -> None:
    assert parsed(**{"k" * 1000: 1}) == ("k" * 64,)
    assert len(parsed(**{f"k{n}": 1 for n in range(MAX_IGNORED)})) == MAX_IGNORED
    assert "more than 64" in refusal(**{f"k{n}": 1 for n in range(MAX_IGNORED + 1)}).message


def within_one_step(name: str, meant: str) -> bool:
    """The optimal string alignment distance, by its recurrence, is at most 1."""
    rows = [[i + j if 0 in (i, j) else 0 for j in range(len(meant) + 1)] for i in range(len(name) + 1)]
    for i in range(1, len(name) + 1):
        for j in range(1, len(meant) + 1):
            differs = name[i - 1] != meant[j - 1]
            rows[i][j] = min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + differs)
            if i > 1 and j > 1 and name[i - 1] == meant[j - 2] and name[i - 2] == meant[j - 1]:
                rows[i][j] = min(rows[i][j], rows[i - 2][j - 2] + 1)
    return rows[-1][-1] <= 1


@given(st.text("abc", max_size=7), st.text("abc", min_size=4, max_size=7))
def test_a_slip_is_one_step(name: str, meant: str) -> None:
    assert is_typo(name, meant) == within_one_step(name, meant)
