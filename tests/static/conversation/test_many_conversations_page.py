"""Several conversations at once in a real browser, over the real application and the fake engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, eventually, quiet_logs, server_starter
from tests.static.conversation.test_chat_page import LAST, READY, UNDO, answer, ask, reload, shown
from tests.static.support.devtools import Browser, Page
from tests.static.support.kept import until_kept
from tests.static.test_tokens_page import set_value

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.usefixtures(quiet_logs.__name__),
]

INPUT = "document.querySelector('#chat-input').value"
DOTS = "document.querySelectorAll('#conversations .dot.KIND').length"
WAITS = "(document.querySelector('#chat-next').hidden === false)"
LATER = "new Promise((resolve) => setTimeout(() => resolve(true), 600))"  # drafts and answers are kept by then

# The page waits for a second until what there is of an answer is kept, which a busy browser may take longer for.
KEEP_IN_ANY_TIME = """
(() => {
  const set = window.setTimeout;
  window.setTimeout = (run, delay, ...given) => set(run, delay === 1000 ? 1e8 : delay, ...given);
})()
"""

# Keeps a conversation of 600 messages, as an import does.
MANY = json.dumps(
    {
        "format": "eagre.conversations",
        "version": 1,
        "conversations": [
            {
                "title": "Long",
                "created": 1,
                "updated": 1,
                "messages": [
                    {
                        "id": f"m{number}",
                        "parent": None if number == 0 else f"m{number - 1}",
                        "role": "assistant" if number % 2 else "user",
                        "created": number + 1,
                        "content": f"Message **{number}**\n\n- one\n- two\n\n```python\nprint({number})\n```\n",
                        "finish": "stop",
                    }
                    for number in range(600)
                ],
            }
        ],
    }
)


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[RunningServer]:
    """Its tokens come by `engine.step()` alone."""
    async with server_starter() as start:
        yield await start(FakeEngineClient(respond=answer, max_model_len=2048, is_manual=True))


async def open_page(browser: Browser, server: RunningServer, fragment: str = "") -> Page:
    page = await browser.open(f"{server.url}/{fragment}")
    await page.wait_for(READY)
    return page


async def new_chat(page: Page) -> None:
    await page.click("#chat-new")
    await page.wait_for("document.querySelectorAll('.message').length === 0")


async def open_entry(page: Page, title: str) -> None:
    found = f"[...document.querySelectorAll('#conversations .title')].find((e) => e.textContent.includes({title!r}))"
    await page.wait_for(f"({found})?.click() ?? {found} !== undefined")


async def test_three_answers_stream_while_a_fourth_conversation_is_read(
    browser: Browser, server: RunningServer
) -> None:
    engine = server.engine
    page = await open_page(browser, server)
    for number, question in enumerate(("the tide comes in", "the ebb goes out", "the sea lies still"), start=1):
        await ask(page, question)
        await eventually(lambda number=number: len(engine.running) == number)
        await new_chat(page)
    await page.wait_for(f"{DOTS.replace('KIND', 'streaming')} === 3")
    assert await page.evaluate("document.querySelector('#chat-send').hidden") is False
    for _ in range(6):
        engine.step()
    await open_entry(page, "the ebb")
    await page.wait_for(f"{LAST}?.querySelector('.content').textContent === 'THE EB'")
    await until_kept(page, "nodes.filter(({ stream }) => stream).length === 3")
    await reload(page)  # all three go on
    await page.wait_for(f"{DOTS.replace('KIND', 'streaming')} === 3")
    while engine.running:
        engine.step()
        await asyncio.sleep(0.01)
    await page.wait_for(f"{LAST}?.dataset.finish === 'stop'")
    assert await shown(page) == ["the ebb goes out", "THE EBB GOES OUT"]
    await page.wait_for(f"{DOTS.replace('KIND', 'new')} === 2")  # nobody has seen the other two
    for question in ("the tide comes in", "the sea lies still"):
        await open_entry(page, question)
        await page.wait_for(f"{LAST}?.querySelector('.content').textContent === {question.upper()!r}")
    await page.wait_for(f"{DOTS.replace('KIND', 'new')} === 0")
    assert page.complaints() == []
    await page.close()


async def test_each_conversation_has_its_draft_which_a_reload_keeps(browser: Browser, server: RunningServer) -> None:
    engine = server.engine
    page = await open_page(browser, server)
    await ask(page, "one")
    await eventually(lambda: len(engine.running) == 1)
    while engine.running:
        engine.step()
        await asyncio.sleep(0.01)
    await page.wait_for(f"{LAST}?.dataset.finish === 'stop'")
    await page.type("a draft of the first")
    await new_chat(page)
    assert await page.evaluate(INPUT) == ""
    await page.type("a draft of the new one")
    await page.wait_for(LATER)
    await reload(page)
    await page.wait_for(f"{INPUT} === 'a draft of the new one'")
    await open_entry(page, "one")
    await page.wait_for(f"{INPUT} === 'a draft of the first'")
    await page.close()


async def test_a_conversation_that_is_deleted_while_it_answers_comes_back_with_what_there_was(
    browser: Browser, server: RunningServer
) -> None:
    engine = server.engine
    page = await open_page(browser, server)
    await ask(page, "the tide comes in")
    await eventually(lambda: len(engine.running) == 1)
    for _ in range(3):
        engine.step()
    await page.wait_for(f"{LAST}?.querySelector('.content').textContent === 'THE'")
    await page.wait_for("document.querySelectorAll('#conversations .name').length === 1")
    await page.evaluate(KEEP_IN_ANY_TIME)
    await page.click("#conversations .tools button:last-child")
    await page.wait_for("document.querySelector('#bin-open').textContent === 'Recently deleted (1)'")
    await eventually(lambda: not engine.running)
    await page.click(UNDO)
    await page.wait_for(f"{LAST}?.dataset.finish === 'abort'")
    assert await shown(page) == ["the tide comes in", "THE"]
    await page.wait_for("document.querySelector('#bin-open').hidden")
    assert page.complaints() == []
    await page.close()


async def test_a_long_conversation_opens_at_its_end_and_is_there_to_its_beginning(
    browser: Browser, server: RunningServer
) -> None:
    page = await open_page(browser, server)
    await page.evaluate(
        "(() => { const files = new DataTransfer(); const field = document.querySelector('#import-file');"
        f" files.items.add(new File([{json.dumps(MANY)}], 'many.json')); field.files = files.files;"
        " field.dispatchEvent(new Event('change')); })()"
    )
    await open_entry(page, "Long")
    await page.wait_for(f"{LAST}?.textContent.includes('Message 599')")
    log = "document.querySelector('#chat-log')"
    gap = f"({log}.scrollHeight - {log}.scrollTop - {log}.clientHeight)"
    await page.wait_for(f"{gap} < 60")
    await page.wait_for("document.querySelectorAll('.message').length === 600")
    await page.wait_for(f"{gap} < 60")
    assert await page.evaluate("document.querySelector('.message .content').textContent.startsWith('Message **0**')")
    await page.evaluate(f"{log}.scrollTop = 0")
    await page.click("#chat-end:not([hidden])")
    await page.wait_for(f"{gap} < 60")
    assert page.complaints() == []
    await page.close()


async def test_a_message_entered_during_an_answer_is_sent_after_it_also_behind_another_conversation(
    browser: Browser, server: RunningServer
) -> None:
    engine = server.engine
    page = await open_page(browser, server)
    await set_value(page, "#system", "Be brief.")

    async def answer_all(number: int) -> None:
        """Steps until so many requests have been answered."""
        while engine.running or len(engine.submitted) < number:
            engine.step()
            await asyncio.sleep(0.01)

    await ask(page, "one")
    await eventually(lambda: len(engine.running) == 1)
    await ask(page, "two")
    await page.wait_for(WAITS)
    await page.type(" more")
    await page.wait_for(f"!{WAITS}")  # a change holds it back
    await page.press("Enter")
    await page.wait_for(WAITS)
    await answer_all(2)
    await page.wait_for(f"{LAST}?.dataset.finish === 'stop' && {LAST}.textContent.includes('TWO MORE')")
    assert await page.evaluate(f"{WAITS} === false && {INPUT} === ''")

    await ask(page, "three")
    await eventually(lambda: len(engine.running) == 1)
    await ask(page, "four")
    await page.wait_for(WAITS)
    await new_chat(page)
    assert await page.evaluate(f"{WAITS} === false && {INPUT} === ''")
    await set_value(page, "#system", "Be long.")
    await answer_all(4)
    assert b"Be brief." in bytes(engine.submitted[-1].prompt_token_ids)
    await open_entry(page, "one")
    await page.wait_for(f"{LAST}?.textContent.includes('FOUR')")
    assert [text.upper() for text in (await shown(page))[-4::2]] == ["THREE", "FOUR"]

    await ask(page, "five")
    await eventually(lambda: len(engine.running) == 1)
    await ask(page, "six")
    await page.wait_for(WAITS)
    await page.press("Escape")
    await page.wait_for(f"{LAST}?.dataset.finish === 'abort' && !{WAITS}")
    assert await page.evaluate(INPUT) == "six"
    await eventually(lambda: not engine.running)  # a browser context that goes at once takes the page's request with it
    assert page.complaints() == []
    await page.close()
