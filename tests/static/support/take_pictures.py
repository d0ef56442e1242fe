"""Takes pictures of the playground at work, for people to look at and for the README.

    python -m tests.static.support.take_pictures http://127.0.0.1:8000 FOLDER [SCENE ...]

The server should have the default model, --inspect-requests, and no keys but the administrator's, which EAGRE_ADMIN_KEY
names. Each scene is taken light and dark, wide and as on a phone. Where AXE names axe-core's axe.min.js, each is also
looked through for what keeps people out.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.patience import PATIENCE_S
from tests.static.support import devtools
from tests.static.support.devtools import Browser, Page, find_chromium

SIZES = {"wide": (1200, 900), "phone": (390, 844)}
SCHEMES = ("light", "dark")

BUSY = """
(async () => {
  for (let at = 0; at < 4; at += 1) {
    fetch("/v1/completions", {
      method: "POST", headers: {"Content-Type": "application/json"},
      body: JSON.stringify({
        prompt: "The tide came in, ".repeat(5 + 40 * at) + at, max_tokens: 150, ignore_eos: true, stream: true, n: 3,
      }),
    }).then((response) => response.text());
    await new Promise((resolve) => setTimeout(resolve, 120));
  }
})()
"""


async def show_engine(page: Page) -> None:
    await page.click("#tab-engine")
    await page.wait_for("!document.querySelector('#engine').hidden")
    await page.evaluate(BUSY)
    await page.wait_for("document.querySelectorAll('#engine-bars li').length > 8")
    await asyncio.sleep(1.5)


async def show_completion(page: Page) -> None:
    await page.click("#completion-new")
    await page.click("#story-examples button")
    await page.wait_for("document.querySelector('#story-page').dataset.finish")


PROMPT = (
    "The harbour lay quiet in the first light, and the boats leaned on the mud as if they were asleep. Then the "
    "old woman on the pier raised her hand and said that"
)


async def write_tokens(page: Page, columns: int) -> None:
    await page.click("#tab-tokens")
    await page.wait_for("!document.querySelector('#tokens').hidden")
    await page.evaluate(f"document.querySelector('#tokens-prompt').value = {PROMPT!r}")
    await page.evaluate(
        f"(() => {{ const columns = document.querySelector('#tokens-columns'); columns.value = '{columns}';"
        "columns.dispatchEvent(new Event('change')); const length = document.querySelector('#max-tokens');"
        "length.value = '60'; length.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )
    if columns > 1:
        await page.evaluate(
            "document.querySelectorAll('.overrides [data-name=seed]').forEach((f, at) => f.value = at + 7)"
        )
    await page.click("#tokens-run")
    await page.wait_for("document.querySelector('#tokens-run').hidden")
    await page.wait_for("!document.querySelector('#tokens-run').hidden")
    await asyncio.sleep(0.5)


async def show_tokens(page: Page) -> None:
    await write_tokens(page, 1)
    await page.click(".tokens [data-at='4']")
    await page.click(".alternatives button:enabled")
    await page.wait_for("document.querySelectorAll('.branches button').length === 2")
    await page.wait_for("!document.querySelector('#tokens-run').hidden")
    await asyncio.sleep(0.5)
    await page.click(".tokens [data-at='9']")


async def show_comparison(page: Page) -> None:
    await write_tokens(page, 3)


async def show_latency(page: Page) -> None:
    await write_tokens(page, 2)
    await page.click("[data-view=latency]")
    await asyncio.sleep(0.3)


async def show_events(page: Page) -> None:
    await write_tokens(page, 1)
    await page.click("[data-view=raw]")
    await asyncio.sleep(0.3)


async def show_chat(page: Page) -> None:
    await page.click("#tab-chat")
    for number, question in enumerate(
        ("Name three colours of the sea, as a list.", "Show me a loop in Python."), start=1
    ):
        await page.evaluate("document.querySelector('#chat-input').focus()")
        await page.type(question)
        await page.press("Enter")
        await page.wait_for(f"document.querySelectorAll('.message.assistant[data-finish]').length === {number}")


async def show_sidebar(page: Page) -> None:
    await show_chat(page)
    await page.evaluate("document.querySelector('#sidebar-toggle').click()")


async def show_inspector(page: Page) -> None:
    await show_chat(page)
    await page.evaluate("[...document.querySelectorAll('.message.assistant [data-action=tokens]')].at(-1).click()")
    await page.click("#inspector [data-view=tokens]")
    await asyncio.sleep(0.5)


async def show_keys(page: Page) -> None:
    await page.evaluate("document.querySelector('#keys-dialog').showModal()")


async def show_parameters(page: Page) -> None:
    await show_chat(page)
    await page.click("#settings-toggle")
    await page.evaluate("document.querySelector('#more-parameters').open = true")
    await page.wait_for("document.querySelector('#parameters .note').textContent")
    await page.evaluate("document.querySelector('#more-parameters').scrollIntoView()")


async def show_tools(page: Page) -> None:
    await page.click("#tab-chat")
    await page.evaluate("document.querySelector('#tools-dialog').showModal()")
    await page.evaluate("document.querySelector('#tools-dialog details').open = true")


async def show_requests(page: Page) -> None:
    await page.click("#tab-engine")
    await page.wait_for("!document.querySelector('#engine').hidden")
    await page.evaluate(BUSY)
    key = os.environ["EAGRE_ADMIN_KEY"]
    await page.evaluate(
        f"(() => {{ const field = document.querySelector('#engine-key'); field.value = {key!r};"
        " field.dispatchEvent(new Event('change')); document.querySelector('#engine-requests').open = true; })()"
    )
    await page.wait_for("document.querySelectorAll('#requests-body tr').length > 2")
    await page.evaluate("document.querySelector('#engine-requests').scrollIntoView()")
    await asyncio.sleep(3)


async def show_request(page: Page) -> None:
    await show_requests(page)
    await page.click("#requests-body tr:last-child button")
    await page.wait_for("document.querySelector('#request-dialog').open")
    await asyncio.sleep(0.3)


async def violations(page: Page, axe: Path) -> list[str]:
    """What axe-core finds wrong with the page as it stands."""
    await page.evaluate(axe.read_text("utf-8") + ";0")
    found: list[str] = await page.evaluate(
        "axe.run().then(({violations}) =>"
        " violations.map(({id, nodes}) => `${id}: ${nodes.map((node) => node.target).join(' ')}`))"
    )
    return found


SCENES: dict[str, Callable[[Page], Awaitable[None]]] = {
    "completion": show_completion,
    "engine": show_engine,
    "tokens": show_tokens,
    "compare": show_comparison,
    "latency": show_latency,
    "events": show_events,
    "chat": show_chat,
    "sidebar": show_sidebar,
    "inspector": show_inspector,
    "keys": show_keys,
    "parameters": show_parameters,
    "tools": show_tools,
    "requests": show_requests,
    "request": show_request,
}


async def take(origin: str, folder: Path, names: list[str]) -> None:
    """Takes the pictures of the named scenes, one after the other."""
    devtools.WAIT_DEADLINE = 2 * PATIENCE_S  # whole answers are waited for, on a machine that may be busy
    executable = find_chromium()
    if executable is None:
        sys.exit("no Chromium is installed")
    axe = os.environ.get("AXE")
    folder.mkdir(parents=True, exist_ok=True)
    browser = Browser(executable)
    await browser.start()
    try:
        for name in names:
            for scheme in SCHEMES:
                for size, (width, height) in SIZES.items():
                    page = await browser.open(origin + "/", width=width, height=height, scheme=scheme)
                    await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
                    await SCENES[name](page)
                    (folder / f"{name}-{scheme}-{size}.png").write_bytes(await page.screenshot())
                    wrong = [] if axe is None else await violations(page, Path(axe))
                    for complaint in [*page.complaints(), *wrong]:
                        sys.stderr.write(f"{name}-{scheme}-{size}: {complaint}\n")
                    await page.close()
    finally:
        await browser.close()


if __name__ == "__main__":
    asyncio.run(take(sys.argv[1], Path(sys.argv[2]), sys.argv[3:] or list(SCENES)))
