"""What editors and front ends send in the course of their work, as their sources have it, and what they read of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.text.infill import Infill
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.server.conftest import RunningServer, StartServer
from tests.server.support.sse_reader import chunks_of

CALL = '<tool_call>\n{"name": "HassTurnOn", "arguments": {"name": "lamp"}}\n</tool_call>'
CHAT = [{"role": "system", "content": "You are an expert coder."}, {"role": "user", "content": "Mend it."}]
CHUNKS = [{"text": "def a(): pass", "time": [1, 2], "filename": "a.py"}]


async def with_infill(start_server: StartServer) -> RunningServer:
    text_model = FakeTextModel()
    text_model.infill = Infill(256, 258, 259)
    return await start_server(FakeEngineClient(max_model_len=4096), text_model=text_model)


async def test_llama_vim(start_server: StartServer) -> None:
    server = await with_infill(start_server)
    warm_up = {
        "id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": CHUNKS, "prompt": "", "n_predict": 0,
        "temperature": 0.0, "samplers": [], "stream": False, "cache_prompt": True, "t_max_prompt_ms": 1,
        "t_max_predict_ms": 1, "response_fields": [""],
    }  # fmt: skip
    assert await server.post("/infill", warm_up) == (200, {})
    fields = [
        "content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms", "timings/prompt_per_second",
        "timings/predicted_n", "timings/predicted_ms", "timings/predicted_per_token_ms",
        "timings/predicted_per_second", "truncated", "tokens_cached",
    ]  # fmt: skip
    gap = {
        **warm_up, "input_prefix": "def f(x):\n", "input_suffix": "\nf(1)\n", "prompt": "    ret", "n_predict": 8,
        "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.9, "samplers": ["top_k", "top_p", "infill"],
        "t_max_prompt_ms": 500, "t_max_predict_ms": 1000, "response_fields": fields,
    }  # fmt: skip
    del gap["temperature"]
    status, answer = await server.post("/infill", gap)
    assert (status, sorted(answer)) == (200, sorted(fields))
    assert (len(answer["content"]), answer["timings/predicted_n"], answer["truncated"]) == (8, 8, False)


async def test_llama_vim_edits_by_instruction(server: RunningServer) -> None:
    warm_up = {
        "id_slot": 1, "messages": CHAT, "samplers": [], "n_predict": 0, "stream": False, "cache_prompt": True,
        "response_fields": [""],
    }  # fmt: skip
    status, _ = await server.post("/v1/chat/completions", warm_up)
    assert (status, server.engine.submitted[-1].params.max_tokens) == (200, 1)
    edit = {
        "id_slot": 1, "messages": CHAT, "min_p": 0.1, "temperature": 0.1, "samplers": ["min_p", "temperature"],
        "stream": True, "cache_prompt": True,
    }  # fmt: skip
    chunks = chunks_of(await server.stream_bytes("/v1/chat/completions", edit))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content", "") for delta in deltas)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_llama_vscode(start_server: StartServer) -> None:
    server = await with_infill(start_server)
    common = {"input_prefix": "a", "input_suffix": "b", "input_extra": CHUNKS, "prompt": "", "cache_prompt": True}
    status, _ = await server.post(
        "/infill", {**common, "n_predict": 0, "samplers": [], "t_max_prompt_ms": 500, "t_max_predict_ms": 1}
    )
    assert status == 200
    status, answer = await server.post(
        "/infill",
        {**common, "n_predict": 4, "top_k": 40, "top_p": 0.99, "stream": False, "n_indent": 2,
         "samplers": ["top_k", "top_p", "infill"], "t_max_prompt_ms": 500, "t_max_predict_ms": 2500},
    )  # fmt: skip
    assert status == 200
    assert answer.keys() >= {"content", "generation_settings", "tokens_cached", "truncated", "timings"}
    edit: dict[str, Any] = {
        "messages": CHAT, "stream": False, "cache_prompt": True, "samplers": "edkypmxt", "temperature": 0.8,
        "dynatemp_range": 0, "dynatemp_exponent": 1, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 1,
        "xtc_probability": 0, "xtc_threshold": 0.1, "repeat_last_n": 64, "repeat_penalty": 1, "presence_penalty": 0,
        "frequency_penalty": 0, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2,
        "dry_penalty_last_n": -1, "max_tokens": -1, "timings_per_token": False,
    }  # fmt: skip
    status, answer = await server.post("/v1/chat/completions", edit)
    assert (status, bool(answer["choices"][0]["message"]["content"])) == (200, True)
    assert server.engine.submitted[-1].params.max_tokens > 64


@pytest.mark.parametrize("name", ["fake", "fake:latest"])
async def test_open_webui_over_ollamas_api(server: RunningServer, name: str) -> None:
    headers = {"X-OpenWebUI-User-Name": "a", "X-OpenWebUI-User-Role": "admin"}
    async with server.http.get(server.url + "/api/version", headers=headers) as response:
        version = (await response.json())["version"]
    assert [int(part) for part in version.split(".")] > [0, 5]  # it compares the versions of its servers
    async with server.http.get(server.url + "/api/tags") as response:
        models = (await response.json())["models"]
    assert {"name", "model", "size", "digest", "details", "modified_at"} <= models[0].keys()
    async with server.http.get(server.url + "/api/ps") as response:
        assert (await response.json())["models"][0]["model"] == models[0]["model"]
    body = {
        "model": name, "messages": CHAT, "stream": True,
        "options": {"temperature": 0.8, "top_p": 0.9, "seed": 3, "num_ctx": 512, "num_predict": 8, "mirostat_eta": 0.1},
        "keep_alive": "5m", "think": None, "format": None, "tools": [],
    }  # fmt: skip
    async with server.http.post(server.url + "/api/chat", json=body, headers=headers) as response:
        lines = [json.loads(line) for line in (await response.text()).splitlines()]
    assert (lines[-1]["done"], lines[-1]["eval_count"]) == (True, 8)
    status, _ = await server.post("/api/generate", {"model": name, "keep_alive": 0, "prompt": ""})  # to unload it
    assert status == 200
    status, answer = await server.post("/api/embed", {"model": name, "input": ["a", "b"], "truncate": True})
    assert (status, len(answer["embeddings"])) == (200, 2)


async def test_open_webui_over_openais_api(server: RunningServer) -> None:
    _, listed = await server.get("/v1/models")
    body = {
        "model": listed["data"][0]["id"], "messages": CHAT, "stream": True, "stream_options": {"include_usage": True},
        "metadata": {"chat_id": "c"}, "max_tokens": 8, "stop": ["###"], "custom_params": {}, "tool_choice": None,
        "reasoning_effort": "low",
    }  # fmt: skip
    chunks = chunks_of(await server.stream_bytes("/v1/chat/completions", body))
    assert chunks[-1]["usage"]["completion_tokens"] == 8
    titles = {**body, "stream": False, "max_completion_tokens": 100, "metadata": {"task": "title_generation"}}
    for name in ("stream_options", "max_tokens"):
        del titles[name]
    assert (await server.post("/v1/chat/completions", titles))[0] == 200


async def test_home_assistant_turns_on_a_lamp(start_server: StartServer) -> None:
    """Its assistant streams, with tools that have no description, and sends results without the tool's name."""
    said = [CALL.encode(), b"The lamp is on."]
    server = await start_server(FakeEngineClient(respond=lambda *_: list(said.pop(0))))
    tool = {
        "type": "function",
        "function": {
            "name": "HassTurnOn",
            "parameters": {"type": "object", "properties": {"name": {"type": "string"}}},
        },
    }
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You control a house."},
        {"role": "user", "content": "Lamp on."},
    ]
    for keep_alive in (-1, "-1s", "300s"):
        body = {
            "model": "fake", "messages": messages, "tools": [tool], "stream": True, "keep_alive": keep_alive,
            "options": {"num_ctx": 8192}, "think": False,
        }  # fmt: skip
        if not said:
            break
        async with server.http.post(server.url + "/api/chat", json=body) as response:
            assert response.status == 200
            lines = [json.loads(line) for line in (await response.text()).splitlines()]
        calls = [call for line in lines for call in line["message"].get("tool_calls") or []]
        messages.append(
            {"role": "assistant", "content": "".join(line["message"]["content"] for line in lines), "tool_calls": calls}
        )
        if calls:
            assert calls[0]["function"]["arguments"] == {"name": "lamp"}
            messages.append({"role": "tool", "content": '{"data": {"success": true}, "error": null}'})
    assert messages[-1]["content"] == "The lamp is on."
    assert not said


async def test_home_assistant_asks_for_data_of_a_form(start_server: StartServer) -> None:
    server = await start_server(FakeEngineClient(respond=lambda *_: list(b'{"lamps": 2}')))
    form = {"type": "object", "properties": {"lamps": {"type": "integer"}}, "required": []}
    body = {"model": "fake", "messages": CHAT, "stream": True, "format": form, "think": False, "tools": None}
    async with server.http.post(server.url + "/api/chat", json=body) as response:
        lines = [json.loads(line) for line in (await response.text()).splitlines()]
    assert json.loads("".join(line["message"]["content"] for line in lines)) == {"lamps": 2}
