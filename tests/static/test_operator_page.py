"""The engine's page as its operator uses it, in a real browser: models, pauses, keys, and figures that are known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, server_starter
from tests.server.serving.conftest import several
from tests.static.devtools import Browser, Page
from tests.static.stub_server import StubServer
from tests.static.test_chat_page import READY
from tests.static.test_tokens_page import set_value

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN = "admin-secret"
STATE = "document.querySelector('#engine-state').textContent"
MODELS = "[...document.querySelectorAll('#engine-models tr')].map((row) => row.children[1].textContent)"
BUTTONS = "[...document.querySelectorAll('#engine-models button')].map((button) => button.getAttribute('aria-label'))"


async def open_engine(browser: Browser, url: str, key: str | None = ADMIN) -> Page:
    page = await browser.open(f"{url}/#/engine")
    await page.wait_for(READY)
    if key is not None:
        await set_value(page, "#engine-key", key)
    return page


async def close(page: Page) -> None:
    assert page.complaints() == []
    await page.close()


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[RunningServer]:
    async with server_starter() as start:
        engine = FakeEngineClient(respond=lambda _prompt, _params: list(b"tide"))
        yield await start(engine, admin_keys=(ADMIN,), api_keys=("key-of-ann ann", "key-of-ben ben"))


async def test_models_come_into_memory_and_go_by_the_operators_hand(browser: Browser) -> None:
    async with several("tide ebb", loads_at_once=False, admin_keys=(ADMIN,), models_max=1) as server:
        server.sources["tide"].may_load.set()
        await server.reach(tide="ready")
        page = await open_engine(browser, server.url)
        await page.wait_for(f"{MODELS}.join() === 'in memory,not loaded'")
        assert await page.evaluate(BUTTONS) == ["Sleep tide", "Pause tide", "Load ebb"]
        await page.click("[aria-label='Load ebb']")
        await server.reach(ebb="loading")
        await page.wait_for(f"{MODELS}[1] === 'loading: starting'")
        server.sources["ebb"].may_load.set()
        await page.wait_for(f"{MODELS}.join() === 'sleeping,in memory'")
        await page.wait_for("document.querySelector('#engine-message').textContent === 'ebb is in memory.'")
        await page.click("[aria-label='Sleep ebb']")
        await server.reach(ebb="asleep")
        await page.wait_for(f"{MODELS}[1] === 'sleeping'")
        await close(page)


async def test_who_has_no_key_sees_the_models_and_changes_nothing(browser: Browser) -> None:
    async with several("tide ebb", admin_keys=(ADMIN,)) as server:
        page = await open_engine(browser, server.url, key=None)
        await page.wait_for(f"{MODELS}.join() === 'in memory,in memory'")
        assert await page.evaluate(BUTTONS) == []
        await close(page)


async def test_a_paused_engine_says_so_everywhere(browser: Browser) -> None:
    async with several("tide", admin_keys=(ADMIN,)) as server:
        page = await open_engine(browser, server.url)
        await page.wait_for(f"{STATE} === 'ready'")
        await page.click("[aria-label='Pause tide']")
        await page.wait_for(f"{STATE} === 'paused'")
        await page.wait_for("document.querySelector('#server-state').textContent === 'paused'")
        await page.wait_for("document.querySelector('#engine-queue').textContent.startsWith('Paused.')")
        await page.click("[aria-label='Resume tide']")
        await page.wait_for("document.querySelector('#server-state').textContent === 'ready'")
        await page.wait_for("document.querySelector('#engine-queue').textContent === 'The queue is empty.'")
        await close(page)


async def test_what_the_keys_have_used_is_for_the_operator(browser: Browser, server: RunningServer) -> None:
    headers = {"Authorization": "Bearer key-of-ben"}
    async with server.http.post(
        f"{server.url}/v1/completions", json={"prompt": "abc", "max_tokens": 4}, headers=headers
    ) as response:
        assert response.status == 200
    page = await browser.open(f"{server.url}/#/engine")
    await page.wait_for("document.querySelector('#server')?.dataset.state === 'locked'")
    await set_value(page, "#api-key", "key-of-ann")
    await page.wait_for(READY)
    assert not await page.evaluate("document.querySelector('#engine-keys').checkVisibility()")
    await set_value(page, "#engine-key", ADMIN)
    await page.wait_for("document.querySelector('#engine-keys')?.checkVisibility()")
    cells = "[...row.children].map((cell) => cell.textContent).join(' ')"
    rows: Any = await page.evaluate(f"[...document.querySelectorAll('#engine-keys tr')].map((row) => {cells})")
    assert [row for row in rows if not row.startswith("admin")] == ["ann 0 0 0 0 0 0", "ben 1 0 3 0 4 0"]
    await page.close()


async def test_a_quiet_engine_claims_to_know_nothing_of_its_device(browser: Browser) -> None:
    server = StubServer()
    await server.start()
    page = await open_engine(browser, server.origin, key=None)
    await page.wait_for("document.querySelector('#engine-idle').textContent === '25 %'")
    server.is_quiet = True
    await page.wait_for("document.querySelector('#engine-idle').textContent === '–'")
    await page.wait_for("!document.querySelector('#engine-lanes').getAttribute('aria-label').includes('idle')")
    await close(page)
    await server.stop()
