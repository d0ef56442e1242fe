"""What a reader meets in a conversation, in a real browser: who wrote it, what was lost, a full context, a phone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, eventually, quiet_logs, server_starter
from tests.static.conversation.test_chat_page import ANSWERS, LAST, READY, UNDO, act, answer, ask
from tests.static.support.devtools import Browser, Page
from tests.static.support.kept import until_kept
from tests.static.support.stub_server import MODEL, StubServer
from tests.static.test_tokens_page import set_value

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.usefixtures(quiet_logs.__name__),
]

LOG = "document.querySelector('#chat-log')"


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[StubServer]:
    server = StubServer()
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, server: StubServer) -> AsyncIterator[Page]:
    page = await browser.open(server.origin + "/")
    await page.wait_for(READY)
    yield page
    assert page.complaints() == []
    await page.close()


async def answered(page: Page, question: str, number: int = 1) -> None:
    await ask(page, question)
    await page.wait_for(f"{ANSWERS} === {number}")


async def test_an_answer_is_signed_with_its_model_and_tells_its_settings(page: Page) -> None:
    await set_value(page, "#seed", "7")
    await answered(page, "Hello?")
    assert await page.text(".message.assistant .who .name") == MODEL
    assert await page.evaluate("document.querySelector('.message.assistant time').dateTime.endsWith('Z')")
    await act(page, "assistant", "tokens")
    details = await page.text("#inspector-details")
    assert MODEL in details
    assert "Seed7" in details
    await page.click("#inspector-close")
    assert await page.evaluate("document.querySelector('#inspector').hidden")


async def test_a_deleted_message_comes_back_and_nothing_is_scrolled_sideways(page: Page) -> None:
    await answered(page, "One?")
    await answered(page, "Two?", 2)
    await page.evaluate(
        "[...document.querySelectorAll('.message.assistant [data-action=remove]')].at(-1).focus({focusVisible: true})"
    )
    await page.press("Enter")
    await page.wait_for("document.querySelectorAll('.message').length === 3")
    assert await page.evaluate(f"{LOG}.scrollLeft") == 0
    assert await page.evaluate(f"{LOG}.scrollWidth <= {LOG}.clientWidth")
    await page.click(UNDO)
    await page.wait_for("document.querySelectorAll('.message').length === 4")
    await page.wait_for("document.querySelector('#conversations .name') !== null")
    await page.evaluate("document.body.dataset.old = 'yes'")
    await page.send("Page.reload")
    await page.wait_for(f"!document.body?.dataset.old && {ANSWERS} === 2")


async def test_a_full_context_holds_the_message_and_offers_ways_out(page: Page, server: StubServer) -> None:
    for number, question in enumerate(("One?", "Two?", "Three?"), start=1):
        await answered(page, question, number)
    server.num_prompt_tokens = 2048
    num_requests = len(server.requests)
    await page.evaluate("document.querySelector('#chat-input').focus()")
    await page.type("Four?")
    await page.wait_for("!document.querySelector('#context-full').hidden")
    await page.press("Enter")
    assert await page.evaluate("document.querySelector('#chat-send').getAttribute('aria-disabled')") == "true"
    assert len(server.requests) == num_requests
    server.num_prompt_tokens = 900
    await page.click("#context-shorten")
    await page.wait_for("document.querySelector('#context-full').hidden")
    await page.wait_for("document.querySelector('.sent-from') !== null")
    await page.evaluate("document.querySelector('#chat-input').focus()")
    await page.press("Enter")
    await page.wait_for(f"{ANSWERS} === 4")
    questions = [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "user"]
    assert questions == ["Three?", "Four?"]


async def test_a_wrong_key_is_told_and_the_right_one_opens(browser: Browser) -> None:
    async with server_starter() as start:
        locked = await start(FakeEngineClient(respond=answer), api_keys=("the-right-key",))
        page = await browser.open(locked.url + "/")
        await page.wait_for("document.querySelector('#server')?.dataset.state === 'locked'")
        assert await page.text("#server-state") == "needs an API key"
        await page.wait_for("!document.querySelector('#settings').hidden")
        await set_value(page, "#api-key", "a-wrong-key")
        await page.wait_for("document.querySelector('#server-state').textContent === 'wrong API key'")
        assert await page.text("#api-key-error") == "The server does not accept this key."
        await set_value(page, "#api-key", "the-right-key")
        await page.wait_for(READY)
        assert await page.text("#api-key-error") == ""
        await page.close()


@pytest_asyncio.fixture(loop_scope="session")
async def slow_server() -> AsyncIterator[RunningServer]:
    """Its tokens come by `engine.step()` alone."""
    async with server_starter() as start:
        yield await start(FakeEngineClient(respond=answer, max_model_len=2048, is_manual=True))


async def begin(browser: Browser, server: RunningServer) -> Page:
    """An answer of which three letters have come."""
    page = await browser.open(server.url + "/")
    await page.wait_for(READY)
    await ask(page, "the tide")
    await eventually(lambda: len(server.engine.running) == 1)
    for _ in range(3):
        server.engine.step()
    await page.wait_for(f"{LAST}?.querySelector('.content').textContent === 'THE'")
    await until_kept(page, "nodes.some(({ content }) => content === 'THE')")
    return page


async def test_an_answer_that_the_server_has_lost_is_told_in_the_readers_words(
    browser: Browser, slow_server: RunningServer
) -> None:
    page = await begin(browser, slow_server)
    received = [params["response"]["headers"] for method, params in page.events if method == "Network.responseReceived"]
    (stream,) = {headers["X-Eagre-Stream"] for headers in received if "X-Eagre-Stream" in headers}
    address = await page.evaluate("location.href")
    await page.send("Page.navigate", {"url": slow_server.url + "/docs"})
    await page.wait_for("location.pathname === '/docs'")
    async with slow_server.http.delete(f"{slow_server.url}/v1/streams/{stream}") as response:
        assert response.status < 300
    await page.send("Page.navigate", {"url": address})
    await page.wait_for("document.querySelector('.message > .error') !== null")
    assert (await page.text(".message > .error")).startswith("The server no longer has this answer")
    assert await page.text(".message.assistant .content") == "THE"
    assert await page.evaluate(f"{LAST}.querySelector('[data-action=continue]') !== null")
    await page.close()


async def test_a_lost_server_is_told_at_the_end_of_the_answer_and_at_the_top(
    browser: Browser, slow_server: RunningServer
) -> None:
    page = await begin(browser, slow_server)
    await slow_server.runner.cleanup()
    await page.wait_for(f"{LAST}.querySelector('.content ~ .waiting') !== null")  # it comes and goes with each attempt
    await page.wait_for("document.querySelector('#server').dataset.state === 'lost'")
    await page.close()


async def open_phone(browser: Browser, server: StubServer) -> Page:
    page = await browser.open("about:blank", width=390, height=780)
    await page.send("Emulation.setTouchEmulationEnabled", {"enabled": True})
    await page.send("Page.navigate", {"url": server.origin + "/"})
    await page.wait_for(READY)
    return page


async def resize(page: Page, width: int, height: int) -> None:
    size: dict[str, Any] = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
    await page.send("Emulation.setDeviceMetricsOverride", size)
    await page.wait_for(f"innerHeight === {height}")


async def test_on_a_phone_enter_starts_a_line_and_the_button_sends(browser: Browser, server: StubServer) -> None:
    page = await open_phone(browser, server)
    await page.evaluate("document.querySelector('#chat-input').focus()")
    await page.type("one")
    await page.press("Enter")
    await page.type("two")
    assert server.requests == []
    await page.click("#chat-send")
    await page.wait_for(f"{ANSWERS} === 1")
    assert server.requests[0]["messages"][-1]["content"] == "one\ntwo"
    await page.close()


async def test_on_a_phone_a_message_waits_for_the_answer_and_may_interrupt_it(
    browser: Browser, server: StubServer
) -> None:
    page = await open_phone(browser, server)
    queue = "document.querySelector('#chat-queue')"
    await page.evaluate("document.querySelector('#chat-input').focus()")
    await page.type("endless")
    await page.click("#chat-send")
    await page.wait_for(f"{LAST}?.querySelector('.content').textContent.length > 10")
    assert await page.evaluate(f"{queue}.hidden")
    await page.type("and then?")
    assert await page.evaluate(
        f"[{queue}, document.querySelector('#chat-stop')].every((button) => button.checkVisibility() &&"
        " button.getBoundingClientRect().right <= innerWidth && button.getBoundingClientRect().bottom <= innerHeight)"
    )
    await page.click("#chat-queue")
    assert await page.evaluate(f"{queue}.hidden && !document.querySelector('#chat-next').hidden")
    assert len(server.requests) == 1
    await page.click("#chat-next-now")
    await page.wait_for(f"{ANSWERS} === 2 && {LAST}.dataset.finish === 'stop'")
    async with asyncio.timeout(PATIENCE_S):
        await server.aborted.wait()
    assert server.requests[1]["messages"][-1]["content"] == "and then?"
    assert await page.evaluate("document.querySelector('#chat-next').hidden")
    assert page.complaints() == []
    await page.close()


@pytest.mark.parametrize(("width", "height"), [(390, 360), (740, 320)])
async def test_with_a_keyboard_or_on_its_side_a_phone_shows_the_answer(
    browser: Browser, server: StubServer, width: int, height: int
) -> None:
    page = await open_phone(browser, server)
    await page.evaluate("document.querySelector('#chat-input').focus()")
    await page.type("endless")
    await page.click("#chat-send")
    await page.wait_for(f"{LOG}.scrollHeight > {LOG}.clientHeight + 300")
    await page.click("#chat-stop")
    await page.wait_for(f"{ANSWERS} === 1")
    await resize(page, width, height)
    await page.evaluate("document.querySelector('#chat-input').focus()")
    await page.wait_for(f"{LOG}.clientHeight > {height} / 2")
    await page.wait_for(f"document.documentElement.scrollHeight <= {height}")
    await page.wait_for(f"document.querySelector('#chat-send').getBoundingClientRect().bottom <= {height}")
    await page.close()


async def test_on_a_phone_the_inspector_is_a_sheet_that_escape_closes(browser: Browser, server: StubServer) -> None:
    page = await open_phone(browser, server)
    await page.evaluate("document.querySelector('#chat-input').focus()")
    await page.type("Hello?")
    await page.click("#chat-send")
    await page.wait_for(f"{ANSWERS} === 1")
    await act(page, "assistant", "tokens")
    box = "document.querySelector('#inspector').getBoundingClientRect()"
    assert await page.evaluate(f"[{box}.width, {box}.bottom]") == [390, 780]
    assert await page.evaluate(f"{box}.top") > 100
    await page.press("Escape")
    await page.wait_for("document.querySelector('#inspector').hidden")
    await page.close()


async def test_the_page_speaks_the_language_of_choice_and_takes_the_chosen_theme(page: Page) -> None:
    assert await page.text("#chat-send") == "Send"
    await set_value(page, "#theme", "dark")
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 24, 26)"
    await set_value(page, "#language", "de")
    await page.wait_for("document.querySelector('#chat-send')?.textContent === 'Senden'")
    assert await page.evaluate("document.documentElement.lang") == "de"
    await page.wait_for(READY)
    await page.wait_for("getComputedStyle(document.body).backgroundColor === 'rgb(16, 24, 26)'")
    key: dict[str, Any] = {"type": "keyDown", "key": "k", "code": "KeyK", "windowsVirtualKeyCode": 75, "modifiers": 2}
    await page.send("Input.dispatchKeyEvent", key)
    await page.wait_for("document.querySelector('#palette').open")
    await page.type("english")
    await page.press("Enter")
    await page.wait_for("document.querySelector('#chat-send')?.textContent === 'Send'")


async def test_a_key_shows_all_keys(page: Page) -> None:
    await page.evaluate("document.activeElement.blur()")
    key: dict[str, Any] = {"type": "keyDown", "key": "?", "text": "?", "modifiers": 8}
    await page.send("Input.dispatchKeyEvent", key)
    await page.wait_for("document.querySelector('#keys-dialog').open")
    assert "New chat" in await page.text("#keys-list")
