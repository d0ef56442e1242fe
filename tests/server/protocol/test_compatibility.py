"""docs/compatibility.md says what happens to the parameters of other servers, and which tests prove what. Both hold."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from server.api.openai.chat_request import ChatCompletionRequest
from server.api.openai.completion_request import CompletionRequest
from server.protocol.errors import to_api_error
from server.protocol.foreign_parameters import SAME_MEANING

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "compatibility.md").read_text()
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
# What a parameter makes no sense without.
BESIDE: dict[str, dict[str, Any]] = {
    "tool_choice": {"tools": TOOLS},
    "parallel_tool_calls": {"tools": TOOLS},
    "stream_options": {"stream": True},
    "return_progress": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "logprob_token_ids": {"logprobs": True},
}
ROW = re.compile(
    r"\| `(\w+)` \| ([^|]+) \| (both|chat|completions) \| (?:`(.*?)`)? ?\| `(.*?)` \| ([^|;]+?)(?:; [^|]+)? \|"
)


class Row(NamedTuple):
    name: str
    servers: str
    routes: str
    default: Any
    example: Any
    here: str

    @property
    def kinds(self) -> list[type[ChatCompletionRequest | CompletionRequest]]:
        chat = [] if self.routes == "completions" else [ChatCompletionRequest]
        return [*chat, *([] if self.routes == "chat" else [CompletionRequest])]


def rows() -> list[Row]:
    found = []
    for line in DOCUMENT.splitlines():
        match = ROW.fullmatch(line)
        if match is not None:
            name, servers, routes, default, example, here = match.groups()
            found.append(Row(name, servers, routes, json.loads(default or "null"), json.loads(example), here))
    return found


def outcome(kind: type[ChatCompletionRequest | CompletionRequest], name: str, value: Any) -> str:
    """In the words of the table."""
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], **BESIDE.get(name, {}), name: value}
    if kind is CompletionRequest:
        asked["prompt"] = "a"
        del asked["messages"]
        if asked.get("logprobs") is True:
            asked["logprobs"] = 1
    try:
        request = kind.parse(asked)
    except Exception as error:  # noqa: BLE001 - of several kinds
        refusal = to_api_error(error)
        other = re.search(r'did you mean "(\w+)"', refusal.message)
        return "refused" if other is None else f"`{other[1]}`"
    if name in request.ignored:
        return "ignored with a warning"
    return "supported" if name in kind.model_fields or name in SAME_MEANING else "accepted"


def test_the_table_is_read_whole() -> None:
    table = [line for line in DOCUMENT.splitlines() if re.match(r"\| `\w+` \| (vLLM|SGLang|llama\.cpp)", line)]
    assert len(rows()) == len(table) > 140
    assert len({row.name for row in rows()}) == len(table)


@pytest.mark.parametrize("here", sorted({row.here for row in rows()}))
def test_parameters_of_other_servers(here: str) -> None:
    for row in rows():
        if row.here == here:
            for kind in row.kinds:
                assert outcome(kind, row.name, row.example) == here, row
                assert outcome(kind, row.name, row.default) in ("supported", "accepted"), row


def test_every_field_that_is_not_ours_alone_is_in_the_table() -> None:
    """A new parameter whose name another server has too belongs there; ours alone are listed behind it."""
    ours_alone = set(re.findall(r"`(\w+)`", DOCUMENT.split("Ours alone are ")[1].split("\n\n")[0]))
    fields = {*ChatCompletionRequest.model_fields, *CompletionRequest.model_fields}
    theirs = {row.name for row in rows() if row.here == "supported"} - SAME_MEANING.keys()
    assert fields - {"model", "prompt", "messages"} == theirs | ours_alone


def test_the_tests_that_it_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", DOCUMENT)
    assert len(named) > 60
    missing = {
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).is_file() or (name and f"def {name}(" not in (ROOT / path).read_text())
    }
    assert missing == set()
