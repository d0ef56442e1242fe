"""Tools that run: the page's own and those of an MCP server, in a real browser over the real application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from sampling.host.params import SamplingParams
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import EOS
from tests.server.conftest import RunningServer, eventually, quiet_logs, server_starter
from tests.static.conversation.test_chat_page import ANSWERS, ask, open_chat, reload, shown
from tests.static.support.devtools import Browser, Page
from tests.static.support.kept import until_kept

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.usefixtures(quiet_logs.__name__),
]

OFFERED = "document.querySelectorAll('.call .actions button').length"


def answer(prompt_token_ids: Sequence[int], _: SamplingParams) -> Sequence[int]:
    """A call where the last line but one asks for one; of what a tool gave, the same text."""
    question = bytes(prompt_token_ids).decode().splitlines()[-2]
    calls = {
        "sum": {"name": "calculator", "arguments": {"expression": "6 * 7"}},
        "wrong": {"name": "calculator", "arguments": {"expression": "6 *"}},
        "tide": {"name": "tide", "arguments": {"port": "Brest"}},
    }
    call = calls.get(question.rpartition(" ")[2])
    text = question.partition(":")[2] if call is None else f"<tool_call>{json.dumps(call)}</tool_call>"
    return [*text.encode(), EOS]


OFFERS: dict[str, Any] = {
    "prompts/list": {"prompts": [{"name": "harbour", "arguments": [{"name": "port", "required": True}]}]},
    "prompts/get": {
        "messages": [
            {"role": "user", "content": {"type": "text", "text": "Who are you?"}},
            {"role": "assistant", "content": {"type": "text", "text": "The harbour master."}},
            {"role": "user", "content": {"type": "text", "text": "say: welcome"}},
        ]
    },
    "resources/list": {"resources": [{"uri": "sea:/tables/brest.txt", "name": "brest.txt"}]},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "sea:/tables/{port}", "name": "table"}]},
    "resources/read": {"contents": [{"uri": "sea:/tables/brest.txt", "mimeType": "text/plain", "text": "noon"}]},
}


class Tides:
    """An MCP server with one tool, which answers when it may, a prompt, and resources."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, object]] = []
        self.calls: list[object] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "DELETE":
            return web.Response()
        message = await request.json()
        if "id" not in message:
            return web.Response(status=202)
        if message["method"] == "initialize":
            can: dict[str, object] = {"tools": {}, "prompts": {}, "resources": {}}
            result: object = {"protocolVersion": "2025-06-18", "capabilities": can, "serverInfo": {"name": "t"}}
        elif message["method"] in OFFERS:
            self.asked.append((message["method"], message.get("params")))
            result = OFFERS[message["method"]]
        elif message["method"] == "tools/list":
            schema = {"type": "object", "properties": {"port": {"type": "string"}}}
            result = {"tools": [{"name": "tide", "description": "When the tide is high", "inputSchema": schema}]}
        else:
            self.calls.append(message["params"])
            await self.may_answer.wait()
            result = {"content": [{"type": "text", "text": "high at noon"}]}
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
        return web.Response(text=f"data: {body}\n\n", content_type="text/event-stream", headers={"Mcp-Session-Id": "s"})


@pytest_asyncio.fixture(loop_scope="session")
async def tides(tmp_path: Path) -> AsyncIterator[tuple[Tides, RunningServer]]:
    server, app = Tides(), web.Application()
    app.router.add_route("*", "/mcp", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"sea": {"url": f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"}}}))
    async with server_starter() as start:
        yield server, await start(FakeEngineClient(respond=answer, max_model_len=4096), mcp_config=str(path))
    await runner.cleanup()


async def choose(page: Page, *names: str) -> None:
    await page.wait_for("!document.querySelector('#chat-tools').disabled")
    await page.click("#chat-tools")
    await page.wait_for("document.querySelector('#running-tools').open")
    for name in names:
        await page.click(f"#tool-sources input[value={name}]")
    await page.click("#running-tools [data-close]")


async def test_a_tool_of_the_page_runs_when_the_reader_says_so(
    browser: Browser, tides: tuple[Tides, RunningServer]
) -> None:
    page = await open_chat(browser, tides[1].url)
    await choose(page, "page")
    assert await page.text("#chat-tools") == "Tools: 1"
    await ask(page, "do the sum")
    await page.wait_for(f"{OFFERED} === 2")
    assert await page.text(".call strong") == "calculator"
    await page.click(".call .actions button")
    await page.wait_for(f"{ANSWERS} === 2")
    assert (await shown(page))[2:] == ["42", "42"]
    await ask(page, "do the wrong")
    await page.wait_for(f"{OFFERED} === 2")
    await page.click(".call .actions button")
    await page.wait_for(f"{ANSWERS} === 4")
    assert (await shown(page))[-1] == "The expression ends too early."
    assert page.complaints() == []
    await page.close()


async def test_a_tool_that_is_allowed_runs_alone_until_it_is_asked_for_again(
    browser: Browser, tides: tuple[Tides, RunningServer]
) -> None:
    mcp, server = tides
    page = await open_chat(browser, server.url)
    await choose(page, "sea")
    await ask(page, "the tide")
    await page.wait_for(f"{OFFERED} === 2")
    assert "sea" in await page.text(".call .actions")
    assert mcp.calls == []
    await page.click(".call .actions button:nth-child(2)")
    await page.wait_for(f"{ANSWERS} === 2")
    assert (await shown(page))[2:] == ["high at noon", "high at noon"]
    assert mcp.calls == [{"name": "tide", "arguments": {"port": "Brest"}}]
    await until_kept(page, "nodes.filter(({ role, finish }) => role === 'assistant' && finish).length === 2")
    await reload(page)
    await page.wait_for(f"{ANSWERS} === 2")
    assert await page.text("#chat-tools") == "Tools: 1"
    await ask(page, "again the tide")
    await page.wait_for(f"{ANSWERS} === 4")
    assert len(mcp.calls) == 2
    assert await page.evaluate(f"{OFFERED} === 0 && document.querySelectorAll('.call + button').length === 0")
    await page.click("#chat-tools")
    await page.wait_for("!document.querySelector('#tools-allowed').hidden")
    assert "tide" in await page.text("#tools-allowed-names")
    await page.click("#tools-ask-again")
    await page.click("#running-tools [data-close]")
    await ask(page, "once more the tide")
    await page.wait_for(f"{OFFERED} === 2")
    assert len(mcp.calls) == 2
    assert page.complaints() == []
    await page.close()


async def test_an_allowed_call_that_runs_is_not_offered_and_runs_once(
    browser: Browser, tides: tuple[Tides, RunningServer]
) -> None:
    mcp, server = tides
    page = await open_chat(browser, server.url)
    await choose(page, "sea")
    await ask(page, "the tide")
    await page.click(".call .actions button:nth-child(2)")
    await page.wait_for(f"{ANSWERS} === 2")
    mcp.may_answer.clear()
    await ask(page, "again the tide")
    await page.wait_for("[...document.querySelectorAll('.call')].at(-1).textContent.includes('Running…')")
    await eventually(lambda: len(mcp.calls) == 2)
    assert await page.evaluate(f"{OFFERED} === 0")
    await page.press("Escape")  # the reader stops it, and is asked again
    await page.wait_for(f"{OFFERED} === 2")
    await page.evaluate(
        "for (const button of [...document.querySelectorAll('.call')].at(-1).querySelectorAll('button')) button.click()"
    )
    mcp.may_answer.set()
    await page.wait_for(f"{ANSWERS} === 4")
    assert len(mcp.calls) == 3
    assert (await shown(page))[-1] == "high at noon"
    assert page.complaints() == []
    await page.close()


async def test_calls_that_wait_can_be_run_after_a_reload(browser: Browser, tides: tuple[Tides, RunningServer]) -> None:
    page = await open_chat(browser, tides[1].url)
    await choose(page, "page")
    await ask(page, "do the sum")
    await page.wait_for(f"{OFFERED} === 2")
    await until_kept(page, "nodes.some(({ finish }) => finish === 'tool_calls')")
    await reload(page)
    await page.wait_for(f"{OFFERED} === 2")
    await page.click(".call .actions button")
    await page.wait_for(f"{ANSWERS} === 2")
    assert (await shown(page))[-1] == "42"
    await page.close()


async def test_prompts_of_a_server_are_written_and_its_resources_attached(
    browser: Browser, tides: tuple[Tides, RunningServer]
) -> None:
    mcp, server = tides

    async def open_offers() -> None:
        await page.wait_for("!document.querySelector('#chat-tools').disabled")
        await page.click("#chat-tools")
        await page.wait_for("document.querySelector('#running-tools').open")
        await page.click("#tool-sources summary")
        await page.wait_for("document.querySelectorAll('.offers button').length === 3")

    page = await open_chat(browser, server.url)
    await open_offers()
    await page.evaluate("document.querySelector('.offers input[name=port]').value = 'Brest'")
    await page.click(".offers button")
    await page.wait_for("document.querySelector('#chat-input').value === 'say: welcome'")
    assert ("prompts/get", {"name": "harbour", "arguments": {"port": "Brest"}}) in mcp.asked
    assert await shown(page) == ["Who are you?", "The harbour master."]
    await open_offers()
    await page.click("[aria-label='Attach files brest.txt']")
    await page.wait_for("document.querySelector('#chat-files')?.textContent.includes('brest.txt')")
    await open_offers()
    await page.evaluate("[...document.querySelectorAll('.offers input')].at(-1).value = 'le havre'")
    await page.click("[aria-label='Attach files table']")
    await page.wait_for("document.querySelectorAll('#chat-files .chip:not(.reading)').length === 2")
    assert mcp.asked[-1] == ("resources/read", {"uri": "sea:/tables/le%20havre"})
    await page.evaluate("document.querySelector('#chat-input').focus()")
    await page.press("Enter")
    await page.wait_for(f"{ANSWERS} === 2")
    prompt = bytes(server.engine.submitted[-1].prompt_token_ids).decode()
    assert prompt.index("The harbour master.") < prompt.index("noon") < prompt.index("say: welcome")
    assert page.complaints() == []
    await page.close()


async def test_a_new_conversation_has_no_tools(browser: Browser, tides: tuple[Tides, RunningServer]) -> None:
    page = await open_chat(browser, tides[1].url)
    await choose(page, "page")
    await ask(page, "say: hello")
    await page.wait_for(f"{ANSWERS} === 1")
    assert {tool["function"]["name"] for tool in await sent_tools(page)} == {"calculator", "time"}
    await page.evaluate("location.hash = '#/new'")
    await page.wait_for("document.querySelector('#chat-tools').textContent === 'Tools'")
    await page.close()


async def sent_tools(page: Page) -> list[dict[str, dict[str, str]]]:
    """The tools that the inspector shows among the settings of the last answer."""
    await page.evaluate("[...document.querySelectorAll('.message.assistant [data-action=tokens]')].at(-1).click()")
    await page.wait_for("document.querySelector('#inspector')?.textContent.includes('calculator')")
    found = await page.evaluate("document.querySelector('#inspector').textContent.match(/\\[\\s*\\{[^]*\\}\\s*\\]/)[0]")
    tools: list[dict[str, dict[str, str]]] = json.loads(found)
    return tools
