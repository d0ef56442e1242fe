"""The tokens of an answer as a text, in a real browser: how it wraps, what its colours mean, and a tap on a phone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, eventually, server_starter
from tests.static.conversation.test_chat_page import ask, open_chat, reload
from tests.static.support.devtools import Browser, Page
from tests.static.support.kept import until_kept
from tests.static.test_tokens_page import ARE_DRAWN, open_tokens, run, set_value

pytestmark = pytest.mark.asyncio(loop_scope="session")

# One paragraph, and lines of code with indents; a token is a character, so that every word has several.
PROSE = "The harbour master counted the boats again, one hundred and eleven lanterns, before the fog came in. " * 9
TEXT = PROSE + "\n\n" + "for boat in harbour:\n    count(boat, lantern)\n" * 9
# The lines of the tokens as they are shown, and of the same text without blocks in a box of the same width.
LINES = """
(() => {
  const linesOf = (element) => {
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    const lines = [];
    let last = -Infinity;
    for (let node; (node = walker.nextNode()); ) {
      for (let at = 0; at < node.length; at += 1) {
        range.setStart(node, at);
        range.setEnd(node, at + 1);
        const { top, width } = range.getBoundingClientRect();
        if (width === 0 || node.data[at].trim() === "") continue;
        if (top > last + 4) lines.push("");
        last = Math.max(last, top);
        lines[lines.length - 1] += node.data[at];
      }
    }
    return lines;
  };
  const tokens = document.querySelector(".column .tokens");
  tokens.style.maxHeight = "none";
  for (const block of tokens.children) block.style.contentVisibility = "visible";
  const shown = linesOf(tokens);
  const plain = tokens.cloneNode();
  plain.textContent = tokens.textContent;
  tokens.after(plain);
  const wanted = linesOf(plain);
  plain.remove();
  tokens.style.maxHeight = "";
  return [shown, wanted];
})()
"""


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def server() -> AsyncIterator[RunningServer]:
    async with server_starter() as start:
        yield await start(FakeEngineClient(respond=lambda _prompt, _params: list(TEXT.encode()), max_model_len=4096))


async def lines(page: Page) -> tuple[list[str], list[str]]:
    shown, wanted = await page.evaluate(LINES)
    return shown, wanted


@pytest.mark.parametrize("width", [1200, 390])
async def test_tokens_wrap_as_the_text_does(browser: Browser, server: RunningServer, width: int) -> None:
    page = await browser.open(server.url + "/", width=width, height=800)
    await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
    await page.click("#tab-tokens")
    await page.wait_for("!document.querySelector('#tokens').hidden")
    await set_value(page, "#max-tokens", str(len(TEXT)))
    await run(page)
    count = "document.querySelectorAll('.column .tokens .token').length"
    await page.wait_for(f"{count} === {len(TEXT)}")
    assert await page.evaluate("document.querySelectorAll('.token-block').length") > 3
    shown, wanted = await lines(page)
    assert len(wanted) > 12
    assert shown == wanted
    screen = {"width": width // 2 + 150, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    await page.send("Emulation.setDeviceMetricsOverride", screen)
    await page.wait_for(f"innerWidth === {screen['width']}")
    are_same = f"(([shown, wanted]) => shown.join('|') === wanted.join('|'))({LINES})"
    await page.wait_for(f"{count} === {len(TEXT)} && {are_same}")
    assert page.complaints() == []
    await page.close()


async def test_a_legend_says_what_colours_and_marks_mean(browser: Browser, server: RunningServer) -> None:
    page = await open_tokens(browser, server.url)
    legend = await page.text(".token-legend")
    for word in ("likely", "unlikely", "prefix cache", "grammar", "chosen by you"):
        assert word in legend
    colours = "getComputedStyle(document.querySelector('SELECTOR')).backgroundColor"
    await run(page)
    shade = await page.evaluate("document.querySelector('.tokens [class*=shade]').className.match(/shade\\d/)[0]")
    assert await page.evaluate(colours.replace("SELECTOR", f".scale .{shade}")) == await page.evaluate(
        colours.replace("SELECTOR", f".tokens .{shade}")
    )
    await page.click(".tokens [data-at='3']")
    assert await page.evaluate("document.querySelector('.token-legend').checkVisibility()")
    await page.close()


@pytest.mark.parametrize("at", [2, 120, 300])
async def test_a_tap_on_a_phone_shows_the_card_and_leaves_the_token_in_view(
    browser: Browser, server: RunningServer, at: int
) -> None:
    page = await browser.open(server.url + "/", width=390, height=780)
    await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
    await page.click("#tab-tokens")
    await page.wait_for("!document.querySelector('#tokens').hidden")
    await set_value(page, "#max-tokens", "400")
    await run(page)
    await page.wait_for("document.querySelectorAll('.column .tokens .token').length === 400")
    await page.click(f".tokens [data-at='{at}']")
    boxes = ", ".join(
        f"document.querySelector({selector!r}).getBoundingClientRect()"
        for selector in ("#token-card .card-head", f".tokens [data-at='{at}']", "#token-card")
    )
    await page.wait_for(  # where lines come into sight, they get other heights within two frames
        "((head, token, card) => 0 <= head.top && head.top < head.bottom && head.bottom <= 780"
        f" && 0 <= token.top && token.top < token.bottom && token.bottom <= card.top)({boxes})"
    )
    await page.click("#token-card .close")
    assert not await page.evaluate("document.querySelector('#token-card').classList.contains('open')")
    assert page.complaints() == []
    await page.close()


async def inspect_an_answer(browser: Browser, server: RunningServer) -> Page:
    """The page with the 300 tokens of an answer in its inspector."""
    page = await browser.open(server.url + "/", width=1200, height=700)
    await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
    await set_value(page, "#max-tokens", "300")
    await page.evaluate("document.querySelector('#chat-input').focus()")
    await page.type("Boats?")
    await page.press("Enter")
    await page.wait_for("document.querySelector('.message.assistant')?.dataset.finish === 'length'")
    await page.click(".message.assistant [data-action=tokens]")
    await page.click("#inspector [data-view=tokens]")
    return page


# The middle of an element, once it has been there for ten frames.
RESTING_PLACE = """
new Promise((done) => {
  let seen = "", frames = 0;
  const look = () => {
    const element = document.querySelector("SELECTOR");
    const {left, top, width, height} = element ? element.getBoundingClientRect() : {};
    const place = {x: left + width / 2, y: top + height / 2};
    frames = element && JSON.stringify(place) === seen ? frames + 1 : 0;
    seen = JSON.stringify(place);
    frames < 10 ? requestAnimationFrame(look) : done(place);
  };
  look();
})
"""


async def test_in_the_inspector_the_alternatives_of_a_token_are_in_sight(
    browser: Browser, server: RunningServer
) -> None:
    page = await inspect_an_answer(browser, server)
    await page.click("#inspector-replay")
    await page.wait_for("document.querySelectorAll('#inspector .branches button').length === 2")
    await page.wait_for("!document.querySelector('#inspector-replay').hidden")
    await page.wait_for("document.querySelectorAll('#inspector .tokens .token').length === 300")
    await page.click("#inspector .tokens [data-at='3']")
    place = await page.evaluate(RESTING_PLACE.replace("SELECTOR", "#inspector .alternatives button:enabled"))
    assert 0 < place["y"] < 700
    for kind in ("mousePressed", "mouseReleased"):
        await page.send("Input.dispatchMouseEvent", {"type": kind, **place, "button": "left", "clickCount": 1})
    await page.wait_for("document.querySelectorAll('#inspector .branches button').length === 3")
    assert not await page.evaluate("document.querySelector('#inspector .token-card').classList.contains('open')")
    await page.wait_for("!document.querySelector('#inspector-replay').hidden")
    await page.click("#inspector .tokens [data-at='5']")
    await page.click("#inspector .branches button")  # another answer is in its place
    assert not await page.evaluate("document.querySelector('#inspector .token-card').classList.contains('open')")
    assert page.complaints() == []
    await page.close()


# Scrolls until another token, whose number it tells, lies under a place.
SLIDE_A_TOKEN_UNDER = """
(({x, y}) => {
  const tokens = document.querySelector("#inspector .tokens");
  let scroller = tokens;
  const scrolls = (e) =>
    ["auto", "scroll"].includes(getComputedStyle(e).overflowY) && e.scrollHeight > e.clientHeight + 40;
  while (!scrolls(scroller)) scroller = scroller.parentElement;
  for (const token of tokens.querySelectorAll(".token")) {
    const rect = token.getBoundingClientRect();
    if (rect.top < y + 20 || token.getClientRects().length > 1 || rect.left + 1 > x || rect.right - 1 < x) continue;
    scroller.scrollTop += Math.round(rect.top + rect.height / 2 - y);
    return Number(document.elementFromPoint(x, y).closest(".token").dataset.at);
  }
})(PLACE)
"""
SOME_FRAMES = """
new Promise((done) => {
  let frames = 20;
  const look = () => ((frames -= 1) > 0 ? requestAnimationFrame(look) : done());
  look();
})
"""


async def test_a_token_that_slides_under_a_resting_pointer_is_not_pointed_at(
    browser: Browser, server: RunningServer
) -> None:
    page = await inspect_an_answer(browser, server)
    await page.wait_for("document.querySelectorAll('#inspector .tokens .token').length === 300")
    place = await page.evaluate(RESTING_PLACE.replace("SELECTOR", "#inspector .tokens [data-at='3']"))
    is_open = "document.querySelector('#inspector .token-card').classList.contains('open')"
    await page.send("Input.dispatchMouseEvent", {"type": "mouseMoved", **place})
    await page.wait_for(is_open)
    await page.click("#inspector .token-card .close")
    assert await page.evaluate(SLIDE_A_TOKEN_UNDER.replace("PLACE", json.dumps(place))) > 3
    await page.evaluate(SOME_FRAMES)
    assert not await page.evaluate(is_open)
    place["x"] += 0.5
    await page.send("Input.dispatchMouseEvent", {"type": "mouseMoved", **place})
    await page.wait_for(is_open)
    assert page.complaints() == []
    await page.close()


async def test_a_branch_becomes_an_answer_of_the_conversation_and_is_there_again_when_it_does_not(
    browser: Browser, server: RunningServer
) -> None:
    tabs = "document.querySelectorAll('#inspector .branches button').length"
    request = "document.querySelector('#inspector .raw pre').textContent"
    about = "document.querySelector('#inspector .raw .about').textContent"
    has_ended = "!document.querySelector('#inspector-replay').hidden"
    answered = "document.querySelectorAll('.message.assistant[data-finish]').length"
    page = await open_chat(browser, server.url)
    await set_value(page, "#max-tokens", "8")
    await ask(page, "Boats?")
    await page.wait_for(f"{answered} === 1")
    await page.click(".message.assistant [data-action=tokens]")
    await page.click("#inspector [data-view=raw]")
    await page.wait_for(f"{request}.includes('/v1/chat/completions') && {request}.includes('Boats?')")
    assert (await page.evaluate(about)).startswith("For this answer")
    await page.click("#inspector [data-view=tokens]")
    await page.click("#inspector-replay")
    await page.wait_for(f"{tabs} === 2 && {has_ended}")
    assert await page.evaluate("document.querySelector('#inspector-keep').hidden"), "a replay is no branch"
    await page.click("#inspector .tokens [data-at='3']")
    await page.click("#inspector .alternatives button:enabled")
    await page.wait_for(f"{tabs} === 3 && {has_ended}")
    await page.click("#inspector [data-view=raw]")
    await page.wait_for(f"{request}.includes('num_prompt_output_tokens') && {about}.includes('branch')")
    await page.wait_for(ARE_DRAWN)
    branch = await page.evaluate("document.querySelector('#inspector .column .tokens').textContent")
    assert branch.startswith(TEXT[:3])
    await page.click("#inspector-keep:not([hidden])")
    await page.wait_for("document.querySelector('.message.assistant .place')?.textContent === '2/2'")
    assert await page.text(".message.assistant .content") == branch.strip()
    assert "branch at token 4" in await page.text(".message.assistant .figures")
    await ask(page, "And then?")
    await page.wait_for(f"{answered} === 2")
    assert branch in bytes(server.engine.submitted[-1].prompt_token_ids).decode()  # the conversation goes on with it
    await page.click(".message.assistant .branches button:enabled")
    await page.wait_for(f"{answered} === 1")
    await page.click(".message.assistant [data-action=tokens]")
    await page.wait_for(f"{tabs} === 3")  # what was begun of this answer is there again
    first = await page.evaluate("document.querySelector('.message.assistant').dataset.node")
    is_shown = f"Object.values(conversations[0].chosen).includes({first!r})"
    await until_kept(page, f"nodes.filter(({{ finish }}) => finish === 'length').length === 3 && {is_shown}")
    await reload(page)
    await page.click(".message.assistant .branches button:enabled")
    await page.wait_for(f"{answered} === 2")
    await page.click(".message.assistant [data-action=tokens]")
    await page.click("#inspector [data-view=tokens]")
    await page.wait_for(f"document.querySelector('#inspector .column .tokens').textContent === {branch!r}")
    await page.click("#inspector-replay")  # the same branch comes again
    await page.wait_for(f"{tabs} === 2 && {has_ended}")
    assert f"the same {len(branch)} tokens again" in await page.text("#inspector .column .figures")
    assert await page.evaluate("document.querySelector('#inspector-keep').hidden")
    assert page.complaints() == []
    await page.close()


async def test_a_token_that_is_looked_at_while_the_answer_is_written_can_begin_a_branch_when_it_has_ended(
    browser: Browser,
) -> None:
    async with server_starter() as start:
        server = await start(FakeEngineClient(respond=lambda *_: list(b"tide"), is_manual=True))
        page = await open_tokens(browser, server.url)
        await page.click("#tokens-run")
        await eventually(lambda: len(server.engine.running) == 1)
        server.engine.step()
        server.engine.step()
        await page.click(".tokens [data-at='1']")
        alternatives = "document.querySelectorAll('.alternatives button:enabled').length"
        assert await page.evaluate(alternatives) == 0
        while server.engine.running:
            server.engine.step()
        await page.wait_for(f"document.querySelector('#tokens-stop').hidden && {alternatives} > 0")
        await page.click(".alternatives button:enabled")
        await eventually(lambda: len(server.engine.running) == 1)
        while server.engine.running:
            server.engine.step()
        await page.wait_for("document.querySelectorAll('.branches button').length === 2")
        await page.wait_for("document.querySelector('#tokens-stop').hidden")
        assert page.complaints() == []
        await page.close()


async def test_columns_begin_with_different_seeds_unless_one_is_set(browser: Browser, server: RunningServer) -> None:
    page = await open_tokens(browser, server.url)
    await set_value(page, "#tokens-columns", "3")
    await set_value(page, ".column:nth-child(2) [data-name=seed]", "5")
    await run(page)
    seeds = [stream.params.seed for stream in server.engine.submitted[-3:]]
    assert len(set(seeds)) == 3
    assert 5 in seeds
    await set_value(page, ".column:nth-child(2) [data-name=seed]", "")
    await set_value(page, "#seed", "7")
    await run(page)
    assert [stream.params.seed for stream in server.engine.submitted[-3:]] == [7, 7, 7]
    assert page.complaints() == []
    await page.close()


async def test_the_events_say_how_many_of_how_many_are_shown(browser: Browser, server: RunningServer) -> None:
    page = await open_tokens(browser, server.url)
    await set_value(page, "#max-tokens", "450")
    await page.click("#tokens [data-view=raw]")
    await run(page)
    note = "document.querySelector('#tokens .raw .note').textContent"
    count = "document.querySelectorAll('#tokens .raw-events li').length"
    await page.wait_for(f"/^Events \\d+ to \\d+ of \\d+\\.$/.test({note})")
    first, last, number = (int(word) for word in (await page.evaluate(f"{note}.match(/\\d+/g)")))
    assert await page.evaluate(count) == last - first + 1 == 200
    assert last == number > 400
    while await page.evaluate(f"{count} < {number}"):
        await page.click("#tokens .raw-events-earlier")
    assert await page.evaluate(note) == f"All {number} events."
    await page.close()
