"""Pictures that go with a message: where the model sees, and where it reads text alone."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from PIL import Image

from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.seeing_text_model import SeeingTextModel
from tests.fakes.text_model import EOS
from tests.server.conftest import server_starter
from tests.static.conversation.test_attachments import GIVE, attached, give, refusal
from tests.static.conversation.test_chat_page import READY, TRANSPORTS, reload
from tests.static.support.devtools import Browser, Page
from tests.static.support.stub_server import StubServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

BEGINS = "data:image/png;base64,"
CHIP = "#chat-files .chip.picture"
# Whether every answer is kept with its end: a page that is loaded anew knows what is kept.
IS_KEPT = """
new Promise((done) => {
  const opening = indexedDB.open("eagre.playground");
  opening.onsuccess = () => {
    const reading = opening.result.transaction("nodes").objectStore("nodes").getAll();
    reading.onsuccess = () => {
      opening.result.close();
      done(reading.result.every(({ role, finish }) => role !== "assistant" || finish !== null));
    };
  };
})
"""


def png_of(size: tuple[int, int], colour: str = "black", *, is_noise: bool = False) -> bytes:
    file = io.BytesIO()
    noise = os.urandom(3 * size[0] * size[1] * is_noise)
    picture = Image.frombytes("RGB", size, noise) if is_noise else Image.new("RGB", size, colour)
    picture.save(file, "PNG")
    return file.getvalue()


SMALL = png_of((9, 6))


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[StubServer]:
    server = StubServer()
    server.modalities = ["text", "image"]
    await server.start()
    yield server
    await server.stop()


async def open_page(browser: Browser, origin: str, width: int = 1200) -> Page:
    page = await browser.open(origin + "/", width=width)
    await page.wait_for(READY)
    await page.click("#tab-chat")
    await page.evaluate(GIVE)
    return page


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, server: StubServer) -> AsyncIterator[Page]:
    page = await open_page(browser, server.origin)
    yield page
    await page.close()


async def send(page: Page, text: str = "") -> None:
    await page.evaluate(f"document.querySelector('#chat-input').value = {json.dumps(text)}, 1")
    count = "document.querySelectorAll('.message.assistant[data-finish]').length"
    before = await page.evaluate(count)
    await page.click("#chat-send")
    await page.wait_for(f"{count} > {before}")
    await page.wait_for(IS_KEPT)


async def become_blind(page: Page, server: StubServer) -> None:
    """The server's model reads text alone from now on, as another one that is chosen might."""
    server.modalities = ["text"]
    await reload(page)


def content_of(server: StubServer) -> Any:
    return server.requests[-1]["messages"][-1]["content"]


@pytest.mark.parametrize("width", [1200, 380])
async def test_a_picture_is_attached_sent_shown_and_kept(browser: Browser, server: StubServer, width: int) -> None:
    page = await open_page(browser, server.origin, width)
    kind, at = ("paste", "#chat-input") if width < 1000 else ("drop", "header")
    assert not await give(page, ("tide.png", "image/png", SMALL), kind=kind, at=at)
    await page.wait_for(f"document.querySelector('{CHIP} img')?.naturalWidth === 9")
    assert await page.text("#announcer") == "One file is attached."
    assert await page.evaluate(f"document.querySelector('{CHIP} button').ariaLabel") == "Remove tide.png"
    await send(page, "What is it?")
    picture, text = content_of(server)
    assert picture == {"type": "image_url", "image_url": {"url": BEGINS + base64.b64encode(SMALL).decode()}}
    assert text == {"type": "text", "text": "What is it?"}
    shown = "document.querySelector('.message.user button.picture img')"
    for _ in range(2):  # before and after a reload
        assert await page.wait_for(f"{shown}?.naturalWidth") == 9
        assert await page.evaluate(f"{shown}.alt") == "tide.png"
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await reload(page)
    await page.wait_for(f"{shown} !== null")
    await send(page, "And now?")  # the picture of an earlier turn goes along
    assert server.requests[-1]["messages"][-3]["content"][0] == picture
    assert page.complaints() == []
    await page.close()


async def test_a_picture_reaches_the_engine_over_each_transport(browser: Browser) -> None:
    engine = FakeEngineClient(respond=lambda _prompt, _params: [*b"red", EOS], max_model_len=2048)
    async with server_starter() as start:
        server = await start(engine, text_model=SeeingTextModel())
        page = await open_page(browser, server.url)
        for transport in TRANSPORTS:
            engine.pictures = ()
            await page.evaluate(f"document.querySelector('input[name=transport][value={transport}]').click()")
            await give(page, ("red.png", "image/png", png_of((9, 6), "red")))
            await attached(page, 1)
            await send(page, transport)
            assert [picture.pixels[0, 0].tolist() for picture in engine.pictures][-1:] == [[255, 0, 0]]
        assert page.complaints() == []
        await page.close()


async def test_a_picture_opens_by_keyboard_and_closes_again(page: Page) -> None:
    await give(page, ("tide.png", "image/png", SMALL))
    await attached(page, 1)
    await send(page, "x")
    await page.evaluate("document.querySelector('.message.user button.picture').focus(), 1")
    await page.press("Enter")
    await page.wait_for("document.querySelector('dialog.picture-dialog[open]')?.ariaLabel === 'tide.png'")
    await page.press("Escape")
    await page.wait_for("document.querySelector('.picture-dialog') === null")
    assert await page.evaluate("document.activeElement.className") == "picture"


async def test_a_message_may_be_a_picture_alone_and_names_the_conversation(page: Page, server: StubServer) -> None:
    await give(page, ("tide.png", "image/png", SMALL))
    await attached(page, 1)
    await send(page)
    assert [part["type"] for part in content_of(server)] == ["image_url"]
    assert await page.text("#chat-title") == "tide.png"


async def test_a_picture_that_is_dropped_before_the_page_knows_its_conversations_stays(
    browser: Browser, server: StubServer
) -> None:
    page = await browser.open("about:blank")
    hold = """
      const gate = new Promise((go) => (window.goOn = go));
      const read = window.createImageBitmap;
      Object.defineProperty(IDBRequest.prototype, "onsuccess", {
        set(heard) { this.addEventListener("success", (event) => gate.then(() => heard.call(this, event))); },
      });
      window.createImageBitmap = (...file) => new Promise((go) => (window.goOnReading = go)).then(() => read(...file));
    """
    await page.send("Page.addScriptToEvaluateOnNewDocument", {"source": hold})
    await page.send("Page.navigate", {"url": server.origin + "/"})
    await page.wait_for(READY)
    await page.evaluate(GIVE)
    await give(page, ("tide.png", "image/png", SMALL))
    await page.wait_for("window.goOnReading !== undefined")
    assert await page.evaluate("document.querySelector('#chat-send').ariaDisabled") is None
    await page.evaluate("window.goOn(), 1")
    await page.wait_for("document.querySelector('#chat-send').ariaDisabled === 'false'")  # the conversation is open
    await page.evaluate("window.goOnReading(), 1")
    await attached(page, 1)
    await page.close()


@pytest.mark.parametrize("name", ["photo.png", "photo.bmp"])
async def test_a_large_picture_is_made_smaller(page: Page, server: StubServer, name: str) -> None:
    """Also where the server does not read its format."""
    content = png_of((2000, 500), is_noise=True)
    await give(page, (name, f"image/{name[-3:]}", content))
    await page.wait_for(f"document.querySelector('{CHIP} img')?.complete")
    await send(page, "x")
    url = content_of(server)[0]["image_url"]["url"]
    assert url.startswith("data:image/jpeg;base64,")
    assert len(url) < 700_000
    with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as sent:
        assert sent.format == "JPEG"
        assert sent.width / sent.height == pytest.approx(4, rel=0.01)
        assert sent.width <= 1568


async def test_a_picture_that_cannot_be_read_is_refused(page: Page) -> None:
    await give(page, ("a.png", "image/png", b"\x89PNG"))
    assert await refusal(page) == "a.png is a picture that this browser cannot read."


async def test_the_pictures_of_a_message_are_bounded(page: Page) -> None:
    photo = png_of((700, 700), is_noise=True)
    await give(page, *((f"{index}.png", "image/png", photo) for index in range(9)))
    assert "longer than 2 million characters" in await refusal(page)
    assert 0 < await page.evaluate(f"document.querySelectorAll('{CHIP}').length") < 9


async def test_a_draft_with_a_picture_is_held_back_where_the_model_does_not_see(page: Page, server: StubServer) -> None:
    await give(page, ("tide.png", "image/png", SMALL))
    await attached(page, 1)
    await become_blind(page, server)
    words = "stub-model reads only text: remove tide.png, or choose a model that sees pictures."
    assert await page.wait_for("document.querySelector('#chat-form .held:not([hidden]) span')?.textContent") == words
    assert await page.evaluate("document.querySelector('#chat-send').disabled")
    await page.click("#chat-form .held button")
    assert await page.evaluate("document.activeElement.ariaLabel") == "Remove tide.png"
    await page.press("Enter")
    await page.wait_for("document.querySelector('#chat-form .held').hidden")
    await send(page, "x")
    assert content_of(server) == "x"


async def test_earlier_pictures_are_notes_for_a_model_that_does_not_see(page: Page, server: StubServer) -> None:
    await give(page, ("tide.png", "image/png", SMALL))
    await attached(page, 1)
    await send(page, "x")
    assert await page.evaluate("document.querySelector('#chat-unseen').hidden")
    await become_blind(page, server)
    told = await page.wait_for("document.querySelector('#chat-unseen').textContent")
    assert told == "stub-model reads only text. It gets a note in the place of each picture above."
    await send(page, "y")
    assert "image_url" not in json.dumps(server.requests[-1])
    assert server.requests[-1]["messages"][-3]["content"].startswith("[An image was left out here")
