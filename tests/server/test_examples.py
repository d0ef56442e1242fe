"""Every program in docs/examples, against the default model. What needs packages of its own is in tests/clients."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import runpy
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from engine.client import EngineClient
from engine.engine import Engine
from server.text.text_model import TextModel
from tests.server.support.real_server import RealServer, serving
from tests.static.support.devtools import Browser, find_chromium

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
WITH_PACKAGES = {"messages.py", "openai.mjs"}  # see tests/clients
CHROMIUM = find_chromium()

# What stands in the output of each, whatever the model says; it is greedy where it is asked for Paris.
SHOWN = {
    "openai_chat.py": ["Paris", " tokens\n"],
    "plain_http.py": ["Paris"],
    "tools.py": ["tide({'harbour': 'B", "o'clock."],
    "structured.py": ["continent='", "is_by_the_sea=", "-"],
    "responses.py": ["Paris"],
    "websocket.py": ["list ended with length: ", "story ended with abort: "],
    "resumable.py": ["--- the connection is lost; the generation goes on ---"],
    "node.mjs": ["Paris"],
    "curl.sh": ["Paris", "data: [DONE]", '"count":4'],
}


@pytest.fixture
async def server(real_engine: Engine, text_model: TextModel) -> AsyncIterator[RealServer]:
    engine = EngineClient(real_engine)
    engine.start(asyncio.get_running_loop())
    async with serving(engine, text_model, allowed_origins=("*",)) as server:
        yield server
        await server.wait_idle()
    engine.shutdown()


def test_each_is_listed_and_tried() -> None:
    programs = {path.name for path in EXAMPLES.iterdir()} - {"README.md"}
    assert programs == {*SHOWN, *WITH_PACKAGES, "browser.html"}
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"[{name}]({name})" in listed for name in programs)


async def test_programs(server: RealServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGRE_URL", server.url)
    for name, shown in SHOWN.items():
        path = EXAMPLES / name
        match path.suffix:
            case ".py":
                output = await asyncio.to_thread(run_python, path)
            case ".mjs":
                output = await run_command("node", path)
            case _:
                output = await run_command("sh", path)
        assert all(text in output for text in shown) or output == "skipped", f"{name}: {output}"
        if name == "resumable.py":
            cut, whole = output.split(f"\n{shown[0]}\n")
            assert whole.startswith(cut)
            assert len(whole) > len(cut)


def run_python(path: Path) -> str:
    """The output of a program, in this process: to import the libraries anew takes a second each.

    The connections of OpenAI's client end with the process of a program. Here they are closed, or the garbage collector
    would find an open socket in the middle of another test.
    """
    with contextlib.redirect_stdout(io.StringIO()) as output:
        names = runpy.run_path(str(path), run_name="__main__")
    if client := names.get("client"):
        client.close()
    return output.getvalue()


async def run_command(command: str, path: Path) -> str:
    if shutil.which(command) is None or shutil.which("curl") is None:
        return "skipped"
    process = await asyncio.create_subprocess_exec(
        command, str(path), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=os.environ
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output
    return output.decode()


@pytest.fixture
async def page_server(server: RealServer) -> AsyncIterator[str]:
    """The address of a server of its own for the page, as its author would have one."""
    html = (EXAMPLES / "browser.html").read_text().replace("http://127.0.0.1:8000", server.url)

    async def show(_request: web.Request) -> web.Response:
        return web.Response(text=html, content_type="text/html")

    app = web.Application()
    app.router.add_get("/", show)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    await runner.cleanup()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
async def test_a_page_of_another_origin(server: RealServer, page_server: str) -> None:
    assert CHROMIUM is not None
    browser = Browser(CHROMIUM)
    await browser.start()
    try:
        page = await browser.open(page_server)
        is_loaded = f"location.href === '{page_server}' && document.readyState === 'complete'"
        await page.wait_for(is_loaded)
        await page.click("#ask")
        await page.wait_for("document.getElementById('story').textContent.length > 5")
        await server.wait_idle()
        story = await page.text("#story")
        await page.evaluate("document.title = 'old'")
        await page.send("Page.reload")
        await page.wait_for(f"document.title !== 'old' && {is_loaded}")
        await page.wait_for(f"document.getElementById('story').textContent.length >= {len(story)}")
        await page.close()
    finally:
        await browser.close()
