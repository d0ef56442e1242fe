"""LangChain's standard tests of chat models, by its clients of OpenAI's, Anthropic's and Ollama's API.

They need a model that calls tools of its own accord, so they run against a server that is given to them:

    EAGRE_URL=http://127.0.0.1:8000 EAGRE_TOOL_MODEL=qwen2.5-coder-0.5b make test-clients ARGS="-k standard"
"""

from __future__ import annotations

import os
from typing import Any

import httpx
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

pytestmark = pytest.mark.skipif(
    "EAGRE_TOOL_MODEL" not in os.environ, reason="EAGRE_TOOL_MODEL names no model that calls tools of its own accord"
)

MAX_TOKENS = 128
REPETITION_PENALTY = 1.1  # without it, small models repeat a sentence without end


class Served(ChatModelIntegrationTests):
    """The model of the server, which LangChain's clients find by their own environment variables."""

    @pytest.fixture(autouse=True)
    def _environment(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._url = url
        monkeypatch.setenv("OPENAI_API_BASE", url + "/v1")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        monkeypatch.setenv("OLLAMA_HOST", url)
        for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
            monkeypatch.setenv(key, "none")

    @property
    def model_override_value(self) -> str | None:
        """Another model that the server has; without one the tests of overriding are skipped."""
        listed = httpx.get(self._url + "/v1/models").json()["data"]
        others = [model["id"] for model in listed if "root" not in model]  # which an alias has
        return next((name for name in others if name != os.environ["EAGRE_TOOL_MODEL"]), None)

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_anthropic_inputs(self) -> bool:
        return True


class TestChatCompletions(Served):
    """Over /v1/chat/completions."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": os.environ["EAGRE_TOOL_MODEL"],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "extra_body": {"repetition_penalty": REPETITION_PENALTY},
            "stream_usage": True,
            "http_async_client": httpx.AsyncClient(),  # the shared one belongs to the loop of another test
        }


class TestResponses(TestChatCompletions):
    """Over /v1/responses."""

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": True}


class TestMessages(Served):
    """Over /v1/messages."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatAnthropic

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": os.environ["EAGRE_TOOL_MODEL"],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "model_kwargs": {"extra_body": {"repetition_penalty": REPETITION_PENALTY}},
            "default_headers": {"Connection": "close"},  # a kept connection belongs to the loop of another test
        }


class TestOllama(Served):
    """Over /api/chat, whose `tool_choice` Ollama's own server does not have."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOllama

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": os.environ["EAGRE_TOOL_MODEL"],
            "num_predict": MAX_TOKENS,
            "temperature": 0,
            "repeat_penalty": REPETITION_PENALTY,
        }

    @property
    def has_tool_choice(self) -> bool:
        return False
