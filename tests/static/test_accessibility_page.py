"""Every view looked through by axe-core, in both themes, wide and as on a phone, and nothing in the console.

It needs axe-core's axe.min.js, which AXE names, and runs with EAGRE_FULL=1.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from sampling.host.params import SamplingParams
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import EOS
from tests.server.conftest import RunningServer, server_starter
from tests.static.conversation.test_answer_text import HAS_KATEX
from tests.static.conversation.test_chat_page import ANSWERS, READY, ask
from tests.static.support.devtools import Browser, Page
from tests.static.support.take_pictures import SIZES, violations
from tests.static.test_tokens_page import set_value
from tests.thoroughness import IS_FULL

AXE = os.environ.get("AXE", "")
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.skipif(not IS_FULL or AXE == "", reason="it takes long, and needs axe-core"),
]

ADMIN = "admin-secret"
TEXT = """# Tides

| Port | High |
|---|---|
| Brest | noon |

1. one
2. `two` and \\(a^2\\)

```python
print("ebb")  # flow
```

```html
<h1>Ebb</h1>
```

> [a link](https://example.org) and **more**
"""
DIALOGS = ("tools-dialog", "schema-dialog", "running-tools", "keys-dialog", "palette")


def answer(_prompt: Sequence[int], _params: SamplingParams) -> Sequence[int]:
    return [*TEXT.encode(), EOS]


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def server() -> AsyncIterator[RunningServer]:
    async with server_starter() as start:
        engine = FakeEngineClient(respond=answer, max_model_len=4096)
        yield await start(engine, admin_keys=(ADMIN,), inspect_requests=True)


async def look(page: Page, place: str, found: list[str]) -> None:
    found += [f"{place}: {violation}" for violation in await violations(page, Path(AXE))]


async def look_at_chat(page: Page, found: list[str]) -> None:
    await look(page, "welcome", found)
    await ask(page, "Tides?")
    if await page.evaluate("document.querySelector('#chat-input').value !== ''"):
        await page.click("#chat-send")  # on a phone Enter starts a line
    await page.wait_for(f"{ANSWERS} === 1")
    if HAS_KATEX:
        await page.wait_for("document.querySelector('.content .katex') !== null")
    await look(page, "chat", found)
    await page.click(".code-head .preview")
    await page.wait_for("document.querySelector('.preview-dialog iframe') !== null")
    await look(page, "preview", found)
    await page.click(".preview-dialog button")
    await page.click("#models-open")
    await page.wait_for("document.querySelectorAll('#picker-models tr').length === 1")
    await page.evaluate("document.querySelector('.admin-key').open = true")
    await set_value(page, "#picker-key", ADMIN)
    await page.wait_for("document.querySelectorAll('#picker-available tr').length > 2")
    await look(page, "models", found)
    await page.click("#models-dialog [data-close]")
    await page.click(".message.assistant [data-action=tokens]")
    for view in ("details", "tokens", "latency", "raw"):
        await page.click(f"#inspector [data-view={view}]")
        await look(page, f"inspector, {view}", found)
    await page.click("#inspector-replay")
    await page.click("#inspector [data-view=tokens]")
    await page.wait_for("document.querySelectorAll('#inspector .branches button').length === 2")
    await page.wait_for("!document.querySelector('#inspector-replay').hidden")
    await page.click("#inspector .tokens .token")
    await look(page, "a token", found)
    await page.click("#inspector-close")
    await page.click("#settings-toggle")
    await page.evaluate("for (const part of document.querySelectorAll('#settings details')) part.open = true")
    await page.wait_for("document.querySelector('#parameters .note').textContent")
    await look(page, "settings", found)
    await page.click("#settings-close")
    for name in DIALOGS:
        dialog = f"document.querySelector('#{name}')"
        await page.evaluate(f"for (const part of {dialog}.querySelectorAll('details')) part.open = true")
        await page.evaluate(f"{dialog}.showModal()")
        await look(page, name, found)
        await page.evaluate(f"{dialog}.close()")
    if await page.evaluate("document.querySelector('#sidebar').hidden"):
        await page.click("#sidebar-toggle")
        await look(page, "sidebar", found)


async def look_at_others(page: Page, found: list[str]) -> None:
    await page.click("#completion-new")
    await page.click("#story-examples button")
    await page.wait_for("document.querySelector('#story-page').dataset.finish")
    await look(page, "completion", found)
    await page.click("#tab-tokens")
    await page.wait_for("!document.querySelector('#tokens').hidden")
    await set_value(page, "#tokens-columns", "2")
    await page.click("#tokens-run")
    await page.wait_for("document.querySelectorAll('#columns .tokens .token').length > 20")
    for view in ("tokens", "latency", "raw"):
        await page.click(f"#tokens-views [data-view={view}]")
        await look(page, f"compare, {view}", found)
    await page.evaluate("location.hash = '#/models'")
    await page.wait_for("!document.querySelector('#engine').hidden")
    await set_value(page, "#engine-key", ADMIN)
    await page.evaluate("document.querySelector('#engine-requests').open = true")
    await page.wait_for("document.querySelectorAll('#requests-body tr').length > 1")
    await look(page, "engine", found)
    await page.click("#requests-body tr:last-child button")
    await page.wait_for("document.querySelector('#request-dialog').open")
    await look(page, "a request", found)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
async def test_no_view_keeps_anybody_out(browser: Browser, server: RunningServer, size: str, scheme: str) -> None:
    width, height = SIZES[size]
    page = await browser.open(server.url + "/", width=width, height=height, scheme=scheme)
    await page.wait_for(READY)
    found: list[str] = []
    await look_at_chat(page, found)
    await look_at_others(page, found)
    assert found == []
    assert page.complaints() == []
    await page.close()
