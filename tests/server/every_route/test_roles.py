"""Roles that some templates know and others do not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import FakeTextModel
from tests.server.conftest import RunningServer, StartServer

KNOWS = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
REFUSES = (
    "{% for m in messages %}{% if m.role not in ['user', 'assistant', 'system'] %}"
    "{{ raise_exception('Unexpected role.') }}{% endif %}{{ m.content }}{% endfor %}"
)
DROPS = "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}{{ m.content }}{% endif %}{% endfor %}"


def messages(role: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "Hi"}, {"role": role, "content": " think "}]


def bodies(role: str) -> dict[str, dict[str, Any]]:
    return {
        "/v1/chat/completions": {"messages": messages(role)},
        "/chat/completions": {"messages": messages(role)},
        "/v1/responses": {"input": messages(role)},
        "/api/chat": {"model": "fake", "messages": messages(role), "stream": False},
        "/tokenize": {"messages": messages(role)},
        "/apply-template": {"messages": messages(role)},
    }


PATHS = list(bodies(""))
GENERATING = PATHS[:4]


async def test_a_template_that_knows_a_role_gets_it(start_server: StartServer) -> None:
    server = await start_server(text_model=FakeTextModel(KNOWS))
    for path in GENERATING:
        status, answer = await server.post(path, bodies("control")[path])
        assert (status, path) == (200, path), answer
        assert bytes(server.engine.submitted[-1].prompt_token_ids) == b"[user]Hi[control]think"


@pytest.mark.parametrize(("template", "words"), [(REFUSES, "Unexpected role."), (DROPS, "leaves its message out")])
async def test_a_template_that_does_not_is_a_clear_error(start_server: StartServer, template: str, words: str) -> None:
    server = await start_server(FakeEngineClient(), text_model=FakeTextModel(template))
    for path in PATHS:
        status, answer = await server.post(path, bodies("control")[path])
        assert (status, path) == (400, path)
        assert "the role control" in str(answer["error"])
        assert words in str(answer["error"])


async def test_other_names_of_a_role_are_that_role(start_server: StartServer) -> None:
    server = await start_server(text_model=FakeTextModel("{% set tool = 1 %}" + KNOWS))
    for role, known in (("developer", "system"), ("function", "tool"), ("ipython", "tool"), ("tool", "tool")):
        for path in GENERATING:
            status, answer = await server.post(path, bodies(role)[path])
            assert (status, path) == (200, path), answer
            assert f"[{known}]think" in bytes(server.engine.submitted[-1].prompt_token_ids).decode()


async def test_a_role_is_one_short_word(server: RunningServer) -> None:
    for role in ("", "two words", "a\nb", "<|im_start|>", "x" * 65, "é"):
        for path in PATHS:
            status, answer = await server.post(path, bodies(role)[path])
            assert (status, path) == (400, path)
            assert "[1].role" in str(answer["error"])
