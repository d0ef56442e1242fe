"""The engine's page as its operator uses it, in a real browser: models, pauses, keys, and figures that are known."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine.interface.types import Progress
from server.http import admin
from server.model_sources import removal
from server.model_sources.cache_folder import ModelStoreError
from server.serving import model_pulls
from tests.fakes.engine_client import FakeEngineClient
from tests.patience import PATIENCE_S
from tests.server.conftest import RunningServer, server_starter
from tests.server.serving.conftest import Source, prefixing, several
from tests.static.conversation.test_chat_page import READY
from tests.static.support.devtools import Browser, Page
from tests.static.support.stub_server import StubServer
from tests.static.test_tokens_page import set_value

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADMIN = "admin-secret"
STATE = "document.querySelector('#engine-state').textContent"
MODELS = "[...document.querySelectorAll('#engine-models tr')].map((row) => row.children[1].textContent)"
BUTTONS = "[...document.querySelectorAll('#engine-models button')].map((button) => button.getAttribute('aria-label'))"


async def open_engine(browser: Browser, url: str, key: str | None = ADMIN) -> Page:
    page = await browser.open(f"{url}/#/engine")
    await page.wait_for(READY)
    await page.wait_for("!document.querySelector('#engine').hidden")
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
        await page.wait_for(f"{BUTTONS}.join() === 'Sleep tide,Pause tide,Load ebb'")
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
        page = await browser.open(server.url + "/")
        await page.wait_for(READY)
        await page.click("#models-open")
        await page.click("#models-dialog a")
        await page.wait_for(f"{MODELS}.join() === 'in memory,in memory'")
        field = "document.querySelector('#engine-key')"
        assert await page.evaluate(
            f"{field}.checkVisibility() && {field}.getBoundingClientRect().top >="
            " document.querySelector('#engine').getBoundingClientRect().top"
        )
        assert "administrator’s key" in await page.text("#engine .models ~ .note")
        assert await page.evaluate(BUTTONS) == []
        assert not await page.evaluate("document.querySelector('.fetcher').checkVisibility()")
        await close(page)


async def test_a_wrong_key_is_told_at_its_field_and_not_taken(browser: Browser) -> None:
    async with several("tide", admin_keys=(ADMIN,)) as server:
        page = await open_engine(browser, server.url, key="wrong")
        error = "document.querySelector('#KEY-error').textContent"
        refused = "'The server does not accept this key.'"
        await page.wait_for(f"{error.replace('KEY', 'engine-key')} === {refused}")
        assert await page.evaluate("document.querySelector('#engine-key').getAttribute('aria-invalid')") == "true"
        assert await page.evaluate(BUTTONS) == []
        await page.click("#models-open")
        await page.wait_for("document.querySelector('#picker-key') !== null")
        await set_value(page, "#picker-key", "as wrong")
        await page.wait_for(f"{error.replace('KEY', 'picker-key')} === {refused}")
        await set_value(page, "#picker-key", ADMIN)
        await page.wait_for(f"{error.replace('KEY', 'picker-key')} === ''")
        await page.click("#models-dialog [data-close]")
        await page.wait_for(f"{BUTTONS}.join() === 'Sleep tide,Pause tide'")  # the operator's page has the key too
        assert await page.evaluate(f"{error.replace('KEY', 'engine-key')} === ''")
        assert await page.evaluate("document.querySelector('#engine-key').value") == ADMIN
        assert all("401" in complaint for complaint in page.complaints())  # of the keys that were tried
        await page.close()


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
        await page.wait_for("document.querySelector('#engine-queue').textContent === 'Queue empty.'")
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
    await page.wait_for("!document.querySelector('#engine').hidden")
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


NAME = "qwen2.5-coder-0.5b"
ROW = f"[...document.querySelectorAll('#engine-available tr')].find((row) => row.textContent.startsWith('{NAME}'))"


async def test_a_model_is_fetched_used_and_deleted_by_the_operators_hand(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    may_end, path, failure = threading.Event(), tmp_path / "models" / f"{NAME}.gguf", list[Exception]()

    def pull(name: str, progress: Progress) -> Path:
        progress("download it (2 of 3)", 123_000_000, 164_000_000)
        if failure:
            raise failure.pop()
        assert may_end.wait(PATIENCE_S)
        path.parent.mkdir()
        with path.open("wb") as file:
            file.truncate(491_400_064)
        return path

    monkeypatch.setenv("EAGRE_CACHE", str(tmp_path))
    monkeypatch.setattr(model_pulls, "pull_model", pull)
    monkeypatch.setattr(admin, "resolve_model", lambda name: path if name == NAME else None)
    monkeypatch.setattr(model_pulls, "resolve_model", lambda name: path if name == NAME else None)
    monkeypatch.setattr(removal, "remove_model", lambda _: path.unlink())
    async with several("tide", admin_keys=(ADMIN,)) as server:
        page = await open_engine(browser, server.url)
        await page.wait_for(f"{ROW}?.innerText.includes('491 MB')")
        about = await page.evaluate(f"{ROW}.innerText")
        assert "650 MB" in about
        assert "Apache License 2.0" in about
        assert "any laptop" in about
        failure.append(ModelStoreError("no network"))
        await page.click(f"[aria-label='Fetch {NAME}']")
        await page.wait_for("document.querySelector('#engine-message').textContent.endsWith('no network')")
        await page.click(f"[aria-label='Fetch {NAME}']")
        await page.wait_for(f"{ROW}.innerText.includes('123 MB of 164 MB, part 2 of 3')")
        again = await open_engine(browser, server.url)  # another page sees the same
        await again.wait_for(f"{ROW}?.innerText.includes('123 MB of 164 MB, part 2 of 3')")
        assert await again.evaluate(f"{ROW}.querySelector('progress').value") == 123_000_000
        may_end.set()
        await page.wait_for(f"document.querySelector(\"[aria-label='Use {NAME}']\") !== null")
        await close(again)
        await page.click(f"[aria-label='Delete {NAME}']")
        await page.click(f"[aria-label='Cancel {NAME}']")
        server.sources[NAME] = Source(prefixing("qwen:"))
        server.sources[NAME].may_load.set()
        await page.click(f"[aria-label='Use {NAME}']")
        await page.wait_for(f"{MODELS}.join() === 'sleeping,in memory'")
        await page.wait_for(
            f"[...document.querySelectorAll('#engine-models th[scope=row]')].map((cell) => cell.textContent).join()"
            f" === 'tide,{NAME}'"
        )
        assert (await server.complete(NAME))[1]["choices"][0]["text"] == "qwen:ab"
        await page.wait_for(f"{ROW}.innerText.includes('in use')")
        await close(page)


async def test_a_model_is_deleted_after_a_question(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "models" / f"{NAME}.gguf"
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(491_400_064)
    monkeypatch.setenv("EAGRE_CACHE", str(tmp_path))
    monkeypatch.setattr(model_pulls, "resolve_model", lambda name: path if name == NAME else None)
    monkeypatch.setattr(removal, "remove_model", lambda _: path.unlink())
    async with several("tide", admin_keys=(ADMIN,)) as server:
        page = await open_engine(browser, server.url)
        await page.click(f"[aria-label='Delete {NAME}']")
        assert path.exists()
        await page.click(f"[aria-label='Delete for good {NAME}']")
        await page.wait_for(f"document.querySelector(\"[aria-label='Fetch {NAME}']\") !== null")
        assert not path.exists()
        await close(page)
