"""The catalogue of models that Codex reads beside OpenAI's list."""

from __future__ import annotations

from typing import Any

MAX_RESULT_TOKENS = 10_000  # of one tool's result, which Codex cuts itself
RESULT_SHARE = 4  # a result takes at most this part of the context
INSTRUCTIONS = (
    "You are a coding agent that runs in a terminal on the user's machine. Do what the user asks by calling the tools: "
    "read files before you change them, make small changes that follow the code around them, and run the tests where "
    "there are any. Go on until the task is done. Then say in a few sentences what you did, and what you could not do."
)
_EFFORTS = {"low": "Reasons briefly", "medium": "Reasons as the task needs it", "high": "Reasons at length"}


def catalogue_entry(name: str, place: int, max_model_len: int | None, *, reasons: bool, sees: bool) -> dict[str, Any]:
    """The entry of one model.

    Args:
        place: in the list; the first is the default.
        max_model_len: None where the model was never loaded.
        reasons: whether its answers have reasoning.
        sees: whether it takes pictures.
    """
    limit = MAX_RESULT_TOKENS if max_model_len is None else min(MAX_RESULT_TOKENS, max_model_len // RESULT_SHARE)
    levels = [{"effort": effort, "description": words} for effort, words in _EFFORTS.items()] if reasons else []
    return {
        "slug": name,
        "display_name": name,
        "description": None,
        "default_reasoning_level": "medium" if reasons else None,
        "supported_reasoning_levels": levels,
        "shell_type": "shell_command",
        "visibility": "list",
        "supported_in_api": True,
        "priority": place,
        "upgrade": None,
        "base_instructions": INSTRUCTIONS,
        "supports_reasoning_summaries": False,
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": "freeform",
        "web_search_tool_type": "text",
        "truncation_policy": {"mode": "tokens", "limit": limit},
        "supports_parallel_tool_calls": True,
        "supports_search_tool": False,
        "context_window": max_model_len,
        "max_context_window": max_model_len,
        "auto_compact_token_limit": None,
        "effective_context_window_percent": 95,
        "experimental_supported_tools": [],
        "input_modalities": ["text", "image"] if sees else ["text"],
        "capabilities": ["completion", "multimodal"] if sees else ["completion"],  # llama.cpp's word
    }
