"""HTML of an answer as it looks: in a frame that reaches nothing, in a real browser over the real application."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import EOS
from tests.server.conftest import eventually, server_starter
from tests.static.conversation.test_chat_page import ANSWERS, ask, open_chat
from tests.static.support.devtools import Browser

pytestmark = pytest.mark.asyncio(loop_scope="session")

# Whatever asks for a connection, or runs.
HTML = """
<link rel="preconnect" href="http://127.0.0.1:PORT"><link rel="stylesheet" href="http://127.0.0.1:PORT/a.css">
<meta http-equiv="refresh" content="0; url=http://127.0.0.1:PORT/b"><base href="http://127.0.0.1:PORT/">
<style>@import url(http://127.0.0.1:PORT/c.css);
p { color: rgb(1, 2, 3); background: url(http://127.0.0.1:PORT/d) }</style>
<p id="it" style="margin: 7px" onclick="this.textContent = 'ran'">Tide</p>
<script>document.querySelector("p").textContent = "ran"</script><iframe src="http://127.0.0.1:PORT/e"></iframe>
<img src="http://127.0.0.1:PORT/f.png" srcset="http://127.0.0.1:PORT/g.png 2x" onerror="this.alt = 'ran'" alt="chart">
<svg><image href="http://127.0.0.1:PORT/h.png"/></svg><a href="http://127.0.0.1:PORT/i">away</a>
"""
LOOK = """
(() => {
  const it = document.querySelector("#it");
  if (it === null) return null;
  it.click();
  document.querySelector("a").click();
  const { color, margin } = getComputedStyle(it);
  const names = document.querySelectorAll("link, meta, base, script, iframe").length;
  return [it.textContent, color, margin, names, origin, document.querySelector("img").alt];
})()
"""


async def test_html_is_drawn_without_its_scripts_and_without_any_connection(browser: Browser) -> None:
    connections = []
    listener = await asyncio.start_server(lambda _reader, writer: connections.append(writer), "127.0.0.1", 0)
    html = HTML.replace("PORT", str(listener.sockets[0].getsockname()[1]))
    async with server_starter() as start:
        respond = [*f"```html{html}```\n".encode(), EOS]
        server = await start(FakeEngineClient(respond=lambda *_: respond, max_model_len=4096))
        page = await open_chat(browser, server.url)
        await ask(page, "Draw the tide")
        await page.wait_for(f"{ANSWERS} === 1")
        await page.click(".code-head .preview")
        frame = "document.querySelector('.preview-dialog iframe')"
        await page.wait_for(f"{frame} !== null")
        assert await page.evaluate(f"[{frame}.sandbox.value, {frame}.contentDocument]") == ["allow-scripts", None]

        async def preview() -> str | None:
            found = (await browser.send("Target.getTargets"))["targetInfos"]
            ids: list[str] = [info["targetId"] for info in found if info["url"].endswith("/preview/index.html")]
            return ids[-1] if ids else None

        while (target := await preview()) is None:
            await asyncio.sleep(0.05)
        session = (await browser.send("Target.attachToTarget", {"targetId": target, "flatten": True}))["sessionId"]

        async def look() -> object:
            params = {"expression": LOOK, "returnByValue": True}
            return (await browser.send("Runtime.evaluate", params, session))["result"].get("value")

        while (seen := await look()) is None:
            await asyncio.sleep(0.05)
        assert seen == ["Tide", "rgb(1, 2, 3)", "7px", 0, "null", "chart"]
        await asyncio.sleep(0.2)  # whatever would connect has done so
        assert connections == []
        await page.click(".preview-dialog button")
        await page.wait_for("document.querySelector('.preview-dialog') === null")
        assert page.complaints() == []
        await page.close()
    listener.close()
    await eventually(lambda: not listener.is_serving())
