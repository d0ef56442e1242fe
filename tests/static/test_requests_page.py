"""The last requests of all clients in a real browser: what the administrator sees of them, and opens."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, server_starter
from tests.static.support.devtools import Browser, Page

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROWS = "[...document.querySelectorAll('#requests-body tr')]"
CARD = "#request-card"


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def server() -> AsyncIterator[RunningServer]:
    async with server_starter() as start:
        server = await start(
            FakeEngineClient(respond=lambda prompt, _: list(b"<b>sea</b>")), admin_keys=("admin-secret",),
            inspect_requests=True,
        )  # fmt: skip
        story = {"prompt": "The tide\n", "max_tokens": 6, "temperature": 0.5, "request_id": "story"}
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is blue?"},
            {"role": "assistant", "content": "The sea."},
            {"role": "user", "content": "And what else?"},
        ]
        chat = {"messages": messages, "max_tokens": 8, "request_id": "chat"}
        await server.post("/v1/completions", story)
        await server.post("/v1/chat/completions", chat)
        await server.post("/v1/completions", {**story, "temperature": -1})
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, server: RunningServer) -> AsyncIterator[Page]:
    """The list is open, by the administrator's key."""
    page = await browser.open(server.url + "/")
    await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
    await page.click("#tab-engine")
    await page.wait_for("!document.querySelector('#engine').hidden")
    await page.evaluate(
        "(() => { const field = document.querySelector('#engine-key'); field.value = 'admin-secret';"
        " field.dispatchEvent(new Event('change')); document.querySelector('#engine-requests').open = true; })()"
    )
    await page.wait_for(f"{ROWS}.length >= 3")
    yield page
    assert page.complaints() == []
    await page.close()


async def open_request(page: Page, name: str) -> None:
    await page.evaluate(
        f"{ROWS}.map((row) => row.querySelector('button')).findLast((b) => b.textContent === {name!r}).click()"
    )
    await page.wait_for("document.querySelector('#request-dialog').open")


async def test_a_request_shows_its_tokens_its_events_and_opens_in_the_story(page: Page) -> None:
    states = await page.evaluate(f"{ROWS}.map((row) => row.children[1].textContent)")
    assert states[:3] == ["refused", "done", "done"]
    await open_request(page, "story")
    tokens = f"[...document.querySelectorAll('{CARD} .prompt-tokens')].map((e) => e.textContent)"
    assert await page.evaluate(tokens) == ["The tide↵\n", "<b>sea"]
    assert await page.evaluate(f"document.querySelector('{CARD} b')") is None
    events = f"[...document.querySelectorAll('{CARD} .raw-events li')].map((e) => parseInt(e.lastChild.textContent))"
    assert sum(await page.evaluate(events)) == 6
    assert '"temperature": 0.5' in await page.text(f"{CARD} pre")
    await page.click(f"{CARD} button")
    await page.wait_for("document.querySelector('#story-text').value === 'The tide\\n'")
    assert await page.evaluate("document.querySelector('#temperature').value") == "0.5"


async def test_a_chat_opens_with_its_answer_and_the_tokens_of_it(page: Page) -> None:
    await open_request(page, "chat")
    await page.click(f"{CARD} button")
    contents = "[...document.querySelectorAll('.content')].map((e) => e.textContent)"
    await page.wait_for(f"{contents}.length === 4")
    assert await page.evaluate(contents) == ["What is blue?", "The sea.", "And what else?", "<b>sea</"]
    assert await page.evaluate("document.querySelector('#system').value") == "Be brief."
    await page.evaluate("[...document.querySelectorAll('.message.assistant [data-action=tokens]')].at(-1).click()")
    await page.click("#inspector [data-view=tokens]")
    await page.wait_for("document.querySelectorAll('#inspector .tokens .token').length === 8")
    assert await page.evaluate("document.querySelector('#inspector-unknown').checkVisibility()")
    replay = "document.querySelector('#inspector-replay').getBoundingClientRect().bottom"
    assert await page.evaluate(f"{replay} < document.querySelector('#inspector .tokens').getBoundingClientRect().top")
    await page.click("#inspector-replay")  # the answer came without probabilities, and gets them now
    await page.wait_for(
        "document.querySelector('#inspector .column .figures').textContent.includes('the same 8 tokens again')"
    )
    assert not await page.evaluate("document.querySelector('#inspector-unknown').checkVisibility()")
    await page.click("#inspector .tokens [data-at='2']")
    assert "probability" in await page.text("#inspector .token-card .card-head")
    assert await page.text("#engine-requests summary") == "Recent requests of all clients"


async def test_a_refused_request_tells_why(page: Page) -> None:
    refused = f"{ROWS}.find((row) => row.children[1].textContent === 'refused')"
    await page.evaluate(f"{refused}.querySelector('button').click()")
    await page.wait_for("document.querySelector('#request-dialog').open")
    assert "temperature" in await page.text(f"{CARD} .error")
