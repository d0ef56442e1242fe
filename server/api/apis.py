"""Which API a path belongs to, for servers that offer some of them only."""

from __future__ import annotations

from server.startup.settings import Api

_LLAMA_CPP_PATHS = frozenset(
    {
        "/completion", "/completions", "/infill", "/embedding", "/embeddings", "/apply-template", "/props", "/slots",
        "/lora-adapters", "/models", "/models/load", "/chat/completions",
    }
)  # fmt: skip
_OPENAI_PATHS = (
    "/v1/chat/", "/v1/completions", "/v1/responses", "/v1/conversations", "/v1/embeddings", "/v1/files", "/v1/batches",
)  # fmt: skip


def api_of(path: str) -> Api | None:
    """The API of a path as it is registered; None of those that every server has, such as `/v1/models`."""
    if path.startswith("/api/"):
        return Api.OLLAMA
    if path.startswith("/v1/messages"):
        return Api.ANTHROPIC
    if path.startswith(_OPENAI_PATHS):
        return Api.OPENAI
    return Api.LLAMA_CPP if path in _LLAMA_CPP_PATHS else None
