"""The figures of an answer in a real browser: as they were measured, whatever happens to the page."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import EOS
from tests.server.conftest import eventually, server_starter
from tests.static.conversation.test_chat_page import LAST, answer, ask, open_chat, reload
from tests.static.support.devtools import Browser
from tests.static.support.kept import until_kept
from tests.static.test_tokens_page import set_value

pytestmark = pytest.mark.asyncio(loop_scope="session")

FIGURES = f"[...{LAST}.querySelectorAll('.figure')].map((figure) => figure.textContent)"
LATER = "new Promise(resolve => setTimeout(() => resolve(true), 300))"


@pytest.mark.parametrize("transport", ["sse", "websocket"])
async def test_a_reload_keeps_what_was_measured_and_makes_up_nothing(browser: Browser, transport: str) -> None:
    async with server_starter() as start:
        server = await start(FakeEngineClient(respond=answer, max_model_len=2048, is_manual=True))
        engine = server.engine
        page = await open_chat(browser, server.url)
        await page.evaluate(f"document.querySelector('input[name=transport][value={transport}]').click()")
        await ask(page, "the tide is coming in")
        await eventually(lambda: len(engine.running) == 1)
        for _ in range(5):
            engine.step()
        await page.wait_for(f"{LAST}?.querySelector('.content').textContent.length === 5")
        await page.wait_for(LATER)
        engine.step()  # figures are shown five times a second
        await page.wait_for(f"{FIGURES}.length > 0")
        await until_kept(page, "nodes.some(({ content }) => content === 'THE TI')")
        first = (await page.evaluate(FIGURES))[0]
        assert first.startswith("first token")
        await reload(page)
        for _ in range(5):
            engine.step()
        await page.wait_for(f"{LAST}?.querySelector('.content').textContent === 'THE TIDE IS'")
        await page.wait_for(LATER)
        while engine.running:
            engine.step()
            await asyncio.sleep(0)
        assert await page.wait_for(f"{LAST}.dataset.finish") == "stop"
        assert await page.evaluate(FIGURES) == [first, "22 tokens", "complete"]
        await page.evaluate(f"{LAST}.querySelector('[data-action=tokens]').click()")
        await page.wait_for("document.querySelectorAll('#inspector .tokens .token').length >= 21")
        latency = await page.text("#inspector .column .figures")
        assert "first token" in latency
        assert "tokens/s" not in latency
        assert page.complaints() == []
        await page.close()


async def test_the_figures_of_a_continued_answer_are_those_of_the_whole(browser: Browser) -> None:
    async with server_starter() as start:
        text = [*b"the tide is in", EOS]
        server = await start(FakeEngineClient(respond=lambda *_: text, max_model_len=2048, is_manual=True))
        page = await open_chat(browser, server.url)
        await ask(page, "tide?")
        await eventually(lambda: len(server.engine.running) == 1)
        for _ in range(5):
            server.engine.step()
        await page.wait_for(f"{LAST}?.querySelector('.content').textContent.length === 5")
        await page.press("Escape")
        await page.wait_for(f"{LAST}.dataset.finish === 'abort'")
        first = (await page.evaluate(FIGURES))[0]
        await page.click(".message.assistant [data-action=continue]")
        await eventually(lambda: len(server.engine.running) == 1)
        while server.engine.running:
            server.engine.step()
            await asyncio.sleep(0)
        await page.wait_for(f"{LAST}.dataset.finish === 'stop'")
        figures = await page.evaluate(FIGURES)
        assert (figures[0], figures[-2:]) == (first, [f"{5 + len(text)} tokens", "complete"])
        await page.close()


async def test_the_figures_of_an_old_answer_are_in_the_language_in_which_they_are_read(browser: Browser) -> None:
    async with server_starter() as start:
        server = await start(FakeEngineClient(respond=answer, max_model_len=2048))
        page = await open_chat(browser, server.url)
        await ask(page, "the tide")
        await page.wait_for(f"{LAST}?.dataset.finish === 'stop'")
        assert (await page.evaluate(FIGURES))[-2:] == ["9 tokens", "complete"]
        await until_kept(page, "nodes.some(({ finish }) => finish === 'stop')")
        await set_value(page, "#language", "de")
        await page.wait_for(f"document.documentElement?.lang === 'de' && {LAST}?.dataset.finish === 'stop'")
        figures = await page.evaluate(FIGURES)
        assert figures[0].startswith("erstes Token")
        assert figures[-2:] == ["9 Tokens", "vollständig"]
        assert page.complaints() == []
        await page.close()
