"""The tab that shows the engine, in a real browser, against a server that answers from a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.server.conftest import eventually
from tests.static.support.devtools import Browser, Page
from tests.static.support.stub_server import StubServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

TOKENS_OF_SLOT = "Number(document.querySelector('#engine-slots tr:nth-child(2) td:nth-child(5)')?.textContent)"
# How many pixels of a picture are not of its background.
INK = """
(() => {
  const canvas = document.querySelector(SELECTOR);
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return pixels.filter((value, at) => at % 4 === 3 && value > 0).length;
})()
"""


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def server() -> AsyncIterator[StubServer]:
    server = StubServer()
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, server: StubServer) -> AsyncIterator[Page]:
    page = await browser.open(server.origin + "/")
    await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
    yield page
    assert page.complaints() == []
    await page.close()


async def test_the_view_moves_and_the_stream_ends_with_the_tab(page: Page, server: StubServer) -> None:
    assert server.num_watchers == 0, "nobody has looked yet"
    await page.click("#tab-engine")
    await page.wait_for(f"{TOKENS_OF_SLOT} > 3")
    row = await page.text("#engine-slots tr:nth-child(2)")
    assert row.startswith("1mineanswering40/40, 8 cached")
    assert await page.text("#engine-hits") == "20 %"
    assert await page.text("#engine-pages") == "25 %"
    assert "40 in, 8 cached" in await page.text("#engine-bars")
    assert "Of 12 pages 3 are active" in await page.evaluate(
        "document.querySelector('#engine-map').getAttribute('aria-label')"
    )
    for picture in ("#engine-map", "#engine-lanes"):
        assert await page.evaluate(INK.replace("SELECTOR", repr(picture))) > 100
    assert server.num_watchers == 1
    await page.click("#tab-chat")
    await eventually(lambda: server.num_watchers == 0)


async def test_a_held_picture_stands_still(page: Page) -> None:
    await page.click("#tab-engine")
    await page.wait_for(f"{TOKENS_OF_SLOT} > 0")
    await page.click("#engine-hold")
    held = await page.evaluate(TOKENS_OF_SLOT)
    await asyncio.sleep(0.1)
    assert await page.evaluate(TOKENS_OF_SLOT) == held
    await page.click("#engine-hold")
    await page.wait_for(f"{TOKENS_OF_SLOT} > {held}")


async def test_an_operator_acts_with_a_key_that_no_other_request_carries(page: Page, server: StubServer) -> None:
    await page.click("#tab-engine")
    await page.wait_for("!document.querySelector('#engine').hidden")
    await page.evaluate(
        "(() => { const field = document.querySelector('#engine-key'); field.value = 'admin-secret';"
        " field.dispatchEvent(new Event('change')); })()"
    )
    await page.click("[data-call=pause]")
    await page.wait_for("document.querySelector('#engine-message').textContent === 'The engine is paused.'")
    assert server.calls == [("pause", "Bearer admin-secret")]


async def test_a_failed_load_is_shown_and_the_next_visit_loads_again(browser: Browser, server: StubServer) -> None:
    page = await browser.open(server.origin + "/")
    await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
    await page.send("Network.enable")
    await page.send("Network.setBlockedURLs", {"urls": ["*engine_view*"]})
    await page.click("#tab-engine")
    await page.wait_for("document.querySelector('#toast-text').textContent.includes('Reload the page')")
    await page.send("Network.setBlockedURLs", {"urls": []})
    await page.click("#tab-chat")
    await page.click("#tab-engine")
    await page.wait_for(f"{TOKENS_OF_SLOT} > 0")
    await page.close()
