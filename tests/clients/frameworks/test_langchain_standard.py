"""LangChain's standard tests of chat models, over chat completions and over responses.

They need a model that calls tools of its own accord, so they run against a server that is given to them:

    EAGRE_URL=http://127.0.0.1:8000 EAGRE_TOOL_MODEL=qwen2.5-coder-0.5b make test-clients ARGS="-k standard"
"""

from __future__ import annotations

import os
from typing import Any

import httpx
import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

pytestmark = pytest.mark.skipif(
    "EAGRE_TOOL_MODEL" not in os.environ, reason="EAGRE_TOOL_MODEL names no model that calls tools of its own accord"
)


class Served:
    """The model of the server, which ChatOpenAI finds by its own environment variables."""

    @pytest.fixture(autouse=True)
    def _environment(self, v1: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_BASE", v1)
        monkeypatch.setenv("OPENAI_API_KEY", "none")

    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": os.environ["EAGRE_TOOL_MODEL"],
            "max_tokens": 128,
            "temperature": 0,
            "extra_body": {"repetition_penalty": 1.1},  # without it, small models repeat a sentence without end
            "stream_usage": True,
            "http_async_client": httpx.AsyncClient(),  # the shared one belongs to the loop of another test
        }


class TestChatCompletions(Served, ChatModelIntegrationTests):
    """Over /v1/chat/completions."""

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestResponses(Served, ChatModelIntegrationTests):
    """Over /v1/responses."""

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": True}

    @property
    def supports_json_mode(self) -> bool:
        return True
