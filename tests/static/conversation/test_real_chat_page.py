"""The chat in a real browser with the real model: answers over each transport, stop, a reload, a branch."""

from __future__ import annotations

import asyncio

import pytest

from engine.client import EngineClient
from engine.engine import Engine
from server.text.text_model import TextModel
from tests.server.conftest import eventually
from tests.server.support.real_server import serving
from tests.static.conversation.test_chat_page import ANSWERS, LAST, TRANSPORTS, act, ask, open_chat, reload, shown
from tests.static.support.devtools import Browser
from tests.static.support.kept import until_kept
from tests.static.test_tokens_page import set_value

MAX_BODY_BYTES = 65_536


@pytest.mark.asyncio(loop_scope="session")
async def test_a_visit(browser: Browser, real_engine: Engine, text_model: TextModel) -> None:
    engine = EngineClient(real_engine)
    engine.start(asyncio.get_running_loop())
    async with serving(engine, text_model, max_body_bytes=MAX_BODY_BYTES) as server:
        page = await open_chat(browser, server.url)
        await set_value(page, "#temperature", "0")
        await set_value(page, "#max-tokens", "12")
        answers: list[str] = []
        for transport in TRANSPORTS:
            await page.click(f"input[name=transport][value={transport}]")
            await page.click("#chat-new")
            await page.wait_for("document.querySelectorAll('.message').length === 0")
            await ask(page, "Name three colours of the sea.")
            await page.wait_for(f"{ANSWERS} === 1")
            answers.append((await shown(page))[1])
        assert len(set(answers)) == 1
        assert answers[0] != ""

        await page.click("input[name=transport][value=sse]")
        await act(page, "assistant", "continue")  # it was cut by its length
        await page.wait_for(
            f"{LAST}.dataset.finish && {LAST}.querySelector('.content').textContent.length > {len(answers[0])}"
        )
        await act(page, "assistant", "regenerate")
        await page.wait_for(f"{LAST}.dataset.finish && {LAST}.querySelector('.place').textContent === '2/2'")
        assert (await shown(page))[1] == answers[0], "the same parameters give the same answer"

        await set_value(page, "#max-tokens", "400")
        await page.click("#parameter-ignore_eos")
        before = engine.stats().num_generation_tokens
        await ask(page, "Tell me a long story.")
        await eventually(lambda: engine.stats().num_generation_tokens >= before + 30)
        await engine.lifecycle.pause()  # so that the answer does not end while a busy machine loads the page
        await page.wait_for(f"{LAST}.querySelector('.content').textContent.length > 30")
        await until_kept(page, "nodes.some(({ stream, content }) => stream && content.length > 30)")
        await reload(page)
        await page.wait_for(f"{LAST}?.getAttribute('aria-busy') === 'true'")
        early = await page.evaluate(f"{LAST}.querySelector('.content').textContent.length")
        await engine.lifecycle.resume()
        await page.wait_for(f"{LAST}.querySelector('.content').textContent.length > {early}")
        await page.press("Escape")
        assert await page.wait_for(f"{LAST}.dataset.finish") == "abort"
        assert page.complaints() == []
        await page.close()
        await server.wait_idle()
    engine.shutdown()
