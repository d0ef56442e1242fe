"""The chat in a real browser, over the real application and the fake engine: reloads, transports, branches, tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from engine.interface.types import PromptProgress, WaitStage
from sampling.host.params import SamplingParams
from tests.fakes.engine_client import FakeEngineClient
from tests.fakes.text_model import EOS
from tests.server.conftest import RunningServer, eventually, quiet_logs, server_starter
from tests.static.support.devtools import Browser, Page
from tests.static.support.kept import until_kept

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.usefixtures(quiet_logs.__name__),
]

TRANSPORTS = ("sse", "websocket", "responses")
READY = "document.querySelector('#server')?.dataset.state === 'ready'"
ANSWERS = "document.querySelectorAll('.message.assistant[data-finish]').length"
UNDO = "#toast:not([hidden]) #toast-undo:not([hidden])"
LAST = "[...document.querySelectorAll('.message.assistant')].at(-1)"
EVIL = "<img src=x onerror=alert(1)><script>document.title = 'x'</script> [a](javascript:alert(1)) **bold**"
TOOL = {"name": "tide", "description": "", "parameters": {"type": "object", "properties": {"port": {"type": "string"}}}}
CALL = '<tool_call>{"name": "tide", "arguments": {"port": "Brest"}}</tool_call>'


# Makes the first version of the page's database, with a question and an answer in it.
FIRST_DATABASE = """
new Promise((done, fail) => {
  const opening = indexedDB.open("eagre.playground", 1);
  opening.onerror = fail;
  opening.onupgradeneeded = () => {
    opening.result.createObjectStore("conversations", { keyPath: "id" });
    opening.result.createObjectStore("nodes", { keyPath: ["conversation", "id"] });
  };
  opening.onsuccess = () => {
    const writing = opening.result.transaction(["conversations", "nodes"], "readwrite");
    const nodes = writing.objectStore("nodes");
    writing.objectStore("conversations").put({
      id: "c", title: "Tides", system: "", created: 1, updated: 1, chosen: {}, numMessages: 2, text: "",
    });
    nodes.put({ conversation: "c", id: "q", parent: null, role: "user", content: "Ebb?", created: 1, attachments: [] });
    nodes.put({
      conversation: "c", id: "a", parent: "q", role: "assistant", content: "Flow.", created: 2, reasoning: "",
      toolCalls: [], model: "fake", parameters: {}, seed: null, transport: "sse", promptTokens: [69], usage: null,
      metrics: null, figures: [], finish: "stop", error: null, stream: null,
      events: [{ at: 1, text: "Flow.", reasoning: "", ids: [70], logprobs: null }],
    });
    writing.oncomplete = () => {
      opening.result.close();
      done();
    };
  };
})
"""


def answer(prompt_token_ids: Sequence[int], _: SamplingParams) -> Sequence[int]:
    """What the last line but one says after its colon, in capitals; a call where it asks for one."""
    question = bytes(prompt_token_ids).decode().splitlines()[-2]
    text = CALL if question.endswith("call") else question.partition(":")[2].upper()
    return [*(EVIL if question.endswith("evil") else text).encode(), EOS]


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[RunningServer]:
    async with server_starter() as start:
        yield await start(FakeEngineClient(respond=answer, max_model_len=2048))


@pytest_asyncio.fixture(loop_scope="session")
async def slow_server() -> AsyncIterator[RunningServer]:
    """Its tokens come by `engine.step()` alone."""
    async with server_starter() as start:
        yield await start(FakeEngineClient(respond=answer, max_model_len=2048, is_manual=True))


async def open_chat(browser: Browser, url: str) -> Page:
    page = await browser.open(url + "/")
    await page.wait_for(READY)
    await page.click("#tab-chat")
    return page


async def ask(page: Page, question: str) -> None:
    await page.evaluate("document.querySelector('#chat-input').focus()")
    await page.type(question)
    await page.press("Enter")


async def act(page: Page, role: str, action: str) -> None:
    await page.evaluate(f"[...document.querySelectorAll('.message.{role} [data-action={action}]')].at(-1).click()")


async def shown(page: Page) -> list[str]:
    texts: list[str] = await page.evaluate("[...document.querySelectorAll('.content')].map(e => e.textContent)")
    return texts


async def reload(page: Page) -> None:
    await page.evaluate("document.body.dataset.old = 'yes'")
    await page.send("Page.reload")
    await page.wait_for(f"!document.body?.dataset.old && {READY}")


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_answer_over_each_transport_and_nothing_in_it_is_html(
    browser: Browser, server: RunningServer, transport: str
) -> None:
    page = await open_chat(browser, server.url)
    await page.click(f"input[name=transport][value={transport}]")
    await ask(page, "evil")
    await page.wait_for(f"{ANSWERS} === 1")
    assert (await shown(page))[1] == EVIL.replace("**", "")
    assert await page.evaluate("document.querySelector('.content strong').textContent") == "bold"
    assert await page.evaluate("document.querySelector('.content :is(img, script, a)')") is None
    await page.wait_for("document.querySelector('#context-words').textContent.includes('of 2,048')")
    assert page.complaints() == []
    await page.close()


async def test_a_conversation_that_an_older_page_kept_whole_is_shown(browser: Browser, server: RunningServer) -> None:
    page = await browser.open(server.url + "/docs")
    await page.wait_for("document.readyState === 'complete' && location.pathname === '/docs'")
    await page.evaluate(FIRST_DATABASE)
    await page.send("Page.navigate", {"url": server.url + "/#/c/c"})
    await page.wait_for(READY)
    await page.wait_for("document.querySelectorAll('.content').length === 2")
    assert await shown(page) == ["Ebb?", "Flow."]
    await page.evaluate("document.querySelector('.message.assistant [data-action=tokens]').click()")
    await page.click("#inspector [data-view=tokens]")
    await page.wait_for("document.querySelector('#inspector .tokens .token')?.textContent === 'Flow.'")
    assert page.complaints() == []
    await page.close()


@pytest.mark.parametrize("transport", ["sse", "websocket"])
async def test_a_reload_in_mid_stream_goes_on_without_a_gap(
    browser: Browser, slow_server: RunningServer, transport: str
) -> None:
    engine = slow_server.engine
    page = await open_chat(browser, slow_server.url)
    await page.click(f"input[name=transport][value={transport}]")
    await ask(page, "the tide is coming in")
    await eventually(lambda: len(engine.running) == 1)
    for _ in range(5):
        engine.step()
    await page.wait_for(f"{LAST}?.querySelector('.content').textContent.length === 5")
    await until_kept(page, "nodes.some(({ content }) => content === 'THE T')")
    await reload(page)
    for _ in range(5):
        engine.step()
    await page.wait_for(f"{LAST}?.querySelector('.content').textContent === 'THE TIDE I'")
    while engine.running:
        engine.step()
        await asyncio.sleep(0)
    assert await page.wait_for(f"{LAST}.dataset.finish") == "stop"
    assert await shown(page) == ["the tide is coming in", "THE TIDE IS COMING IN"]
    await until_kept(page, "nodes.some(({ finish }) => finish === 'stop')")
    await reload(page)
    await page.wait_for("document.querySelectorAll('.content').length === 2")  # it is read from the browser's database
    assert await shown(page) == ["the tide is coming in", "THE TIDE IS COMING IN"]
    await page.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_wait_is_told_and_stop_ends_the_generation_although_its_stream_could_be_resumed(
    browser: Browser, slow_server: RunningServer, transport: str
) -> None:
    engine = slow_server.engine
    page = await open_chat(browser, slow_server.url)
    await page.click(f"input[name=transport][value={transport}]")
    await ask(page, "the tide")
    await eventually(lambda: len(engine.running) == 1)
    await page.wait_for(f"{LAST}.querySelector('.waiting') !== null")  # by now somebody reads what the stream tells
    engine.submitted[-1].report(PromptProgress(WaitStage.QUEUED, queue_position=3, estimated_seconds=4.0))
    await page.wait_for(f"{LAST}.querySelector('.waiting')?.textContent.startsWith('In the queue: 3 before this one')")
    for _ in range(3):
        engine.step()
    await page.wait_for(f"{LAST}?.querySelector('.content').textContent === 'THE'")
    await page.press("Escape")
    assert await page.wait_for(f"{LAST}.dataset.finish") == "abort"
    await eventually(lambda: not engine.running)
    await page.close()


async def test_edits_and_other_answers_are_branches_and_come_back_after_a_reload(
    browser: Browser, server: RunningServer
) -> None:
    page = await open_chat(browser, server.url)
    await ask(page, "one")
    await page.wait_for(f"{ANSWERS} === 1")
    await ask(page, "two")
    await page.wait_for(f"{ANSWERS} === 2")
    await act(page, "assistant", "regenerate")
    await page.wait_for(f"{LAST}.querySelector('.place')?.textContent === '2/2' && {LAST}.dataset.finish")
    await page.evaluate("document.querySelector('.message.user [data-action=edit]').click()")
    await page.evaluate("document.querySelector('.editor textarea').select()")
    await page.type("three")
    await page.evaluate("document.querySelector('.editor').requestSubmit()")
    await page.wait_for(f"document.querySelectorAll('.message').length === 2 && {ANSWERS} === 1")
    assert await shown(page) == ["three", "THREE"]
    await page.evaluate("document.querySelector('.message.user .branches button').click()")
    assert await shown(page) == ["one", "ONE", "two", "TWO"]
    is_shown = "conversations[0].chosen[''] === nodes.find(({ content }) => content === 'one').id"
    await until_kept(page, f"nodes.filter(({{ finish }}) => finish === 'stop').length === 4 && {is_shown}")
    await reload(page)
    await page.wait_for(f"{ANSWERS} === 2")
    assert await shown(page) == ["one", "ONE", "two", "TWO"]
    await page.wait_for("document.querySelector('#conversations .name')?.textContent === 'one'")
    await page.close()


async def test_a_call_is_a_card_and_its_result_goes_back(browser: Browser, server: RunningServer) -> None:
    page = await open_chat(browser, server.url)
    await set_field(page, "tools-text", json.dumps(TOOL))
    assert await page.text("#tools-state") == "1 tool"
    await ask(page, "please call")
    await page.wait_for("document.querySelector('.call textarea:not([hidden])') !== null")
    assert await page.text(".call strong") == "tide"
    assert json.loads(await page.text(".call pre")) == {"port": "Brest"}
    await page.evaluate("document.querySelector('.call textarea').value = 'High at noon'")
    await page.click(".calls .primary")
    await page.wait_for(f"{ANSWERS} === 2")
    assert (await shown(page))[2:] == ["High at noon", "HIGH AT NOON"]
    await page.close()


async def test_parameters_explain_themselves_and_are_sent(browser: Browser, server: RunningServer) -> None:
    page = await open_chat(browser, server.url)
    assert await page.text("#temperature-note + .origin") == "The usual value. The model recommends none."
    await page.evaluate("document.querySelector('#more-parameters').open = true")
    await page.wait_for("document.querySelector('#parameter-min_p-note').textContent.includes('0 to 1')")
    await set_field(page, "parameter-min_p", "0.25")
    await set_field(page, "parameter-top_k", "7")
    await set_field(page, "parameter-min_p", "3")
    assert await page.text("#parameter-min_p ~ .invalid") != ""
    assert "min p" in await page.text("#chat-form .held")
    await set_field(page, "parameter-min_p", "0.25")
    await ask(page, "one")
    await page.wait_for(f"{ANSWERS} === 1")
    params = server.engine.submitted[-1].params
    assert (params.min_p, params.top_k) == (0.25, 7)
    assert params.seed is not None
    await page.close()


async def test_the_palette_opens_by_a_key_and_runs_what_is_typed(browser: Browser, server: RunningServer) -> None:
    page = await open_chat(browser, server.url)
    for kind in ("keyDown", "keyUp"):
        key: dict[str, Any] = {"type": kind, "key": "k", "code": "KeyK", "windowsVirtualKeyCode": 75, "modifiers": 2}
        await page.send("Input.dispatchKeyEvent", key)
    await page.wait_for("document.querySelector('#palette').open")
    await page.type("go to engine")
    await page.press("Enter")
    await page.wait_for("!document.querySelector('#engine').hidden && !document.querySelector('#palette').open")
    await page.close()


async def set_field(page: Page, id_: str, value: str) -> None:
    await page.evaluate(
        f"(field => {{ field.value = {json.dumps(value)};"
        f" field.dispatchEvent(new Event('input', {{bubbles: true}})); }})(document.getElementById('{id_}'))"
    )


@pytest.mark.parametrize("transport", ["sse", "websocket"])
async def test_a_completion_goes_on_after_a_reload(
    browser: Browser, slow_server: RunningServer, transport: str
) -> None:
    engine = slow_server.engine
    page = await browser.open(slow_server.url + "/#/completion")
    await page.wait_for(READY)
    await page.click(f"input[name=transport][value={transport}]")
    await page.wait_for("document.querySelector('#chat').dataset.kind === 'completion'")
    await page.evaluate("document.querySelector('#story-text').value = 'x\\na:one two\\nb'")
    await page.click("#story-continue")
    await eventually(lambda: len(engine.running) == 1)
    for _ in range(3):
        engine.step()
    story = "document.querySelector('#story-text').value"
    await page.wait_for(f"{story}.endsWith('bONE')")
    await until_kept(page, "nodes.some(({ content }) => content === 'ONE')")
    await reload(page)
    for _ in range(6):
        engine.step()
    await page.wait_for("document.querySelector('#story-page').dataset.finish === 'stop'")
    assert await page.evaluate(story) == "x\na:one two\nbONE TWO"
    await page.wait_for(
        "!document.querySelector('#story-undo').disabled && !document.querySelector('#story-undo').hidden"
    )
    await page.wait_for("!document.querySelector('#story-undo').disabled")
    await page.click("#story-undo")
    await page.wait_for(f"{story} === 'x\\na:one two\\nb'")
    await page.close()


async def test_a_frame_that_comes_late_does_not_show_what_was_taken_back(
    browser: Browser, slow_server: RunningServer
) -> None:
    """Text is shown in the browser's next frame, which a busy machine draws when the answer has long ended."""
    engine = slow_server.engine
    page = await browser.open(slow_server.url + "/#/completion")
    await page.wait_for(READY)
    await page.wait_for("document.querySelector('#chat').dataset.kind === 'completion'")
    await page.evaluate("document.querySelector('#story-text').value = 'x\\na:one two\\nb'")
    await page.evaluate("window.late = []; window.requestAnimationFrame = (draw) => window.late.push(draw); true")
    await page.click("#story-continue")
    await eventually(lambda: len(engine.running) == 1)
    for _ in range(9):
        engine.step()
    await page.wait_for("document.querySelector('#story-page').dataset.finish === 'stop'")
    story = "document.querySelector('#story-text').value"
    assert await page.evaluate(story) == "x\na:one two\nbONE TWO"
    await page.click("#story-undo")
    assert await page.evaluate(story) == "x\na:one two\nb"
    assert await page.evaluate("window.late.splice(0).map((draw) => draw(performance.now())).length") > 0
    assert await page.evaluate(story) == "x\na:one two\nb"
    await page.close()


async def test_every_question_and_its_answer_are_in_sight(browser: Browser, server: RunningServer) -> None:
    """Messages out of sight are not laid out, so the end of the log moves after it has been reached."""
    page = await browser.open(f"{server.url}/")
    await page.wait_for(READY)
    log = "document.querySelector('#chat-log')"
    gap = f"({log}.scrollHeight - {log}.scrollTop - {log}.clientHeight)"
    for number in range(1, 7):
        await ask(page, f"{number}: " + "Tell of bread and of the sea. " * 4)
        await page.wait_for(f"{ANSWERS} === {number}")
        await page.wait_for(f"{gap} < 60 && document.querySelector('#chat-end').hidden")
    assert page.complaints() == []
    await page.close()
