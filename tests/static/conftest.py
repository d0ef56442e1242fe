"""One browser for all tests of the page. All of them run in one asyncio loop, because the browser lives in it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.static.support.devtools import Browser, find_chromium


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def only_browser() -> AsyncIterator[Browser]:
    executable = find_chromium()
    if executable is None:
        pytest.skip("no Chromium is installed")
    browser = Browser(executable)
    await browser.start()
    yield browser
    await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def browser(only_browser: Browser) -> AsyncIterator[Browser]:
    yield only_browser
    await only_browser.close_pages()
