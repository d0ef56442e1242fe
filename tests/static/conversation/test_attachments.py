"""Files that go with a message: dropped anywhere, pasted, chosen; read as text, or refused with a word."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.static.support.devtools import Browser, Page
from tests.static.support.pdf_file import pdf_of
from tests.static.support.stub_server import STATIC, StubServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

needs_pdf = pytest.mark.skipif(not any((STATIC / "packages").glob("pdfjs-dist@*")), reason="pdf.js was not fetched")

# Gives files to the page as a drop or a paste does; the answer says whether the browser would still act by itself.
GIVE = """
window.give = (kind, files, selector, text) => {
  const transfer = new DataTransfer();
  for (const [name, type, content] of files) {
    transfer.items.add(new File([Uint8Array.from(atob(content), (c) => c.charCodeAt(0))], name, { type }));
  }
  if (text) transfer.setData("text/plain", text);
  const options = { bubbles: true, cancelable: true };
  const event = kind === "paste"
    ? new ClipboardEvent(kind, { ...options, clipboardData: transfer })
    : new DragEvent(kind, { ...options, dataTransfer: transfer });
  return document.querySelector(selector).dispatchEvent(event);
}, 1
"""


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[StubServer]:
    server = StubServer()
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, server: StubServer) -> AsyncIterator[Page]:
    page = await browser.open(server.origin + "/")
    await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
    await page.click("#tab-chat")
    await page.evaluate(GIVE)
    yield page
    await page.close()


async def give(
    page: Page,
    *files: tuple[str, str, bytes],
    kind: str = "drop",
    at: str = "body",
    text: str = "",
) -> bool:
    encoded = [(name, type_, base64.b64encode(content).decode()) for name, type_, content in files]
    arguments = ", ".join(json.dumps(argument) for argument in (kind, encoded, at, text))
    goes_on: bool = await page.evaluate(f"give({arguments})")
    return goes_on


async def attached(page: Page, count: int) -> list[str]:
    await page.wait_for(f"document.querySelectorAll('#chat-files > :not(.reading)').length === {count}")
    names: list[str] = await page.evaluate(
        "[...document.querySelectorAll('#chat-files > *')].map((chip) => chip.firstChild.data)"
    )
    return names


async def refusal(page: Page) -> str:
    words: str = await page.wait_for("document.querySelector('#chat-error').textContent")
    return words


@pytest.mark.parametrize("at", ["header", "#settings", "#chat-log", "#chat-input"])
async def test_a_file_may_be_dropped_anywhere(page: Page, at: str) -> None:
    assert not await give(page, ("a.py", "", b"x = 1\n"), kind="dragover", at=at)
    assert await page.evaluate("!document.querySelector('.drop-veil').hidden")
    assert not await give(page, ("a.py", "", b"x = 1\n"), at=at)
    assert await attached(page, 1) == ["a.py"]
    assert await page.evaluate("document.querySelector('.drop-veil').hidden")


async def test_a_file_that_is_dropped_elsewhere_leads_to_the_chat(page: Page) -> None:
    await page.click("#tab-engine")
    await page.wait_for("!document.querySelector('#engine').hidden")
    assert not await give(page, ("a.md", "", b"# A"), at="#engine")
    await page.wait_for("!document.querySelector('#chat').hidden")
    assert await attached(page, 1) == ["a.md"]


async def test_text_that_is_dragged_is_the_browsers_own(page: Page) -> None:
    assert await give(page, kind="drop", at="#chat-input", text="words")


async def test_a_pasted_file_is_attached_and_pasted_text_is_text(page: Page) -> None:
    assert not await give(page, ("notes.txt", "text/plain", b"tide"), kind="paste", at="#chat-input")
    assert await attached(page, 1) == ["notes.txt"]
    assert await give(page, ("t.png", "image/png", b"\x89PNG"), kind="paste", at="#chat-input", text="a cell")
    assert await page.evaluate("document.querySelector('#chat-error').hidden")


async def test_a_long_pasted_text_is_attached_unless_shift_is_held(page: Page) -> None:
    assert await give(page, kind="paste", at="#chat-input", text="x" * 4999)
    assert not await give(page, kind="paste", at="#chat-input", text="x" * 5000)
    assert await attached(page, 1) == ["pasted.txt"]
    await page.evaluate(
        "document.dispatchEvent(new KeyboardEvent('keydown', { key: 'V', ctrlKey: true, shiftKey: true }))"
    )
    assert await give(page, kind="paste", at="#chat-input", text="x" * 5000)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (("photo.png", "image/png", b"\x89PNG"), "photo.png is a picture, and the model reads only text."),
        (("song.mp3", "audio/mpeg", b"ID3"), "song.mp3 is a recording, and the model reads only text."),
        (("a.docx", "", b"PK\x03\x04"), "a.docx is a document of an office program; save it as text or PDF."),
        (("a.zip", "", b"PK\x03\x04"), "a.zip is an archive; attach what is in it."),
        (("a.bin", "", b"\xff\x00\xfe"), "a.bin is not a text file in UTF-8."),
        (("long.txt", "", b"x" * (512 * 1024 + 1)), "long.txt is larger than 512 KiB."),
    ],
)
@pytest.mark.parametrize("kind", ["drop", "paste"])
async def test_what_cannot_be_read_is_said(page: Page, kind: str, file: tuple[str, str, bytes], words: str) -> None:
    assert not await give(page, file, ("b.txt", "", b"b"), kind=kind, at="#chat-input")
    assert await refusal(page) == words
    assert await attached(page, 1) == ["b.txt"]


async def test_the_number_and_the_sum_of_files_are_bounded(page: Page) -> None:
    await give(page, *((f"{index}.txt", "", b"x") for index in range(17)))
    assert await refusal(page) == "A message has at most 16 files."
    assert len(await attached(page, 16)) == 16
    await page.evaluate("document.querySelectorAll('#chat-files button').forEach((button) => button.click())")
    await give(page, *((f"{index}.txt", "", b"x" * 500_000) for index in range(5)))
    assert "longer than 2 million characters" in await refusal(page)
    assert len(await attached(page, 4)) == 4


async def test_utf_16_with_its_mark_is_text(page: Page, server: StubServer) -> None:
    await give(page, ("w.txt", "", "Größe".encode("utf-16")))
    await attached(page, 1)
    await page.click("#chat-send")
    await page.wait_for("document.querySelector('.message.assistant')?.dataset.finish")
    assert server.requests[-1]["messages"][-1]["content"] == "w.txt\n```\nGröße\n```\n\n"


@needs_pdf
async def test_the_text_of_a_pdf_file_is_sent(page: Page, server: StubServer) -> None:
    await give(page, ("tide.pdf", "application/pdf", pdf_of("High water", "Low water")))
    assert await attached(page, 1) == ["tide.pdf"]
    await page.evaluate("document.querySelector('#chat-input').value = 'Which?'")
    await page.click("#chat-send")
    await page.wait_for("document.querySelector('.message.assistant')?.dataset.finish")
    content = server.requests[-1]["messages"][-1]["content"]
    assert content == "tide.pdf\n```\nHigh water\n\nLow water\n```\n\nWhich?"
    assert page.complaints() == []


@needs_pdf
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (pdf_of(""), "has no text; its pages may be pictures"),
        (b"%PDF-1.7\nnothing", "is a PDF file that cannot be read"),
        (pdf_of(*["x"] * 501), "has 501 pages; at most 500 are read"),
    ],
)
async def test_a_pdf_file_without_text_is_refused(page: Page, content: bytes, words: str) -> None:
    await give(page, ("a.pdf", "application/pdf", content))
    assert await refusal(page) == f"a.pdf {words}."


async def test_without_the_library_a_pdf_file_is_refused(page: Page) -> None:
    await page.send("Network.setBlockedURLs", {"urls": ["*pdfjs*"]})
    await give(page, ("a.pdf", "application/pdf", pdf_of("x")))
    assert await refusal(page) == "a.pdf is a PDF file, which this server’s page cannot read."


async def test_a_message_waits_for_its_files(page: Page, server: StubServer) -> None:
    await page.evaluate("Blob.prototype.arrayBuffer = () => new Promise(() => {}), 1")  # reading never ends
    await give(page, ("slow.txt", "", b"x"))
    await page.wait_for("document.querySelector('#chat-files .reading') !== null")
    await page.evaluate("document.querySelector('#chat-input').value = 'now'")
    num_asked = len(server.requests)
    await page.click("#chat-send")
    assert await refusal(page) == "slow.txt is still being read."
    assert len(server.requests) == num_asked
