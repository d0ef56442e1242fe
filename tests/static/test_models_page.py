"""Several models in one server, as the page offers them: chosen, compared, loaded and put to sleep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.server.serving.conftest import several
from tests.static.conversation.test_chat_page import ANSWERS, LAST, READY, ask, reload
from tests.static.support.devtools import Browser, Page
from tests.static.support.kept import until_kept
from tests.static.support.stub_server import StubServer
from tests.static.test_tokens_page import choose_model, open_tokens, run, set_value, shown

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_model_is_chosen_and_two_are_compared(browser: Browser) -> None:
    async with several("tide ebb") as server:
        page = await open_tokens(browser, server.url)
        assert "".join(await run(page)).startswith("tide:")
        await choose_model(page, "ebb")
        assert "".join(await run(page)).startswith("ebb:")
        await set_value(page, "#tokens-columns", "2")
        await set_value(page, ".column:nth-child(2) [data-name=model]", "tide")
        assert "".join(await run(page)).startswith("ebb:")
        assert "".join(await shown(page, 2)).startswith("tide:")
        await page.wait_for(
            "document.querySelector('#tokens-difference').textContent.startsWith('They part at token 1')"
        )
        assert [len(server.engine(name).submitted) for name in ("tide", "ebb")] == [2, 2]
        await page.click("#tab-chat")
        await page.evaluate("document.querySelector('#chat-input').focus()")
        await page.type("hello")
        await page.press("Enter")
        await page.wait_for("document.querySelector('.message.assistant')?.dataset.finish !== undefined")
        assert (await page.text(".message.assistant .content")).startswith("ebb:")
        assert page.complaints() == []
        await page.close()


# What the page has asked for by the time when it is ready.
ASKED = """
new MutationObserver((_, observer) => {
  if (document.querySelector("#server")?.dataset.state !== "ready") return;
  window.asked = performance.getEntriesByType("resource").map(({ name }) => name).join();
  observer.disconnect();
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-state"] });
"""


async def test_the_page_of_a_server_that_is_ready_brings_the_models(browser: Browser) -> None:
    async with several("tide ebb") as server:
        page = await browser.open("about:blank")
        await page.send("Page.addScriptToEvaluateOnNewDocument", {"source": ASKED})
        for _ in range(2):  # the second time from what the browser has kept, after a 304
            await page.send("Page.navigate", {"url": server.url + "/"})
            asked = await page.wait_for("window.asked")
            assert "readiness" not in asked
            assert "v1/models" not in asked
            assert await page.text("#server-model") == "tide"
            await page.send("Page.navigate", {"url": "about:blank"})
            await page.wait_for("location.href === 'about:blank'")
        await page.close()


ROWS = (
    "[...document.querySelectorAll('#picker-models tr')].map((row) =>"
    " [...row.children].slice(0, 3).map((cell) => cell.textContent).join(' / ')).join()"
)
BUTTONS = (
    "[...document.querySelectorAll('#picker-models .actions-column button')]"
    ".map((button) => button.getAttribute('aria-label')).join()"
)


async def test_the_list_in_the_header_tells_states_and_memory_and_lets_who_may_load_and_put_to_sleep(
    browser: Browser,
) -> None:
    async with several("tide ebb", loads_at_once=False, admin_keys=("admin-secret",), models_max=1) as server:
        for name, weights in (("tide", 120), ("ebb", 1200)):
            engine = server.engine(name)
            engine.model_info = replace(engine.model_info, weight_bytes=weights * 1_000_000, cache_bytes=80_000_000)
        server.sources["tide"].may_load.set()
        await server.reach(tide="ready")
        page = await browser.open(server.url + "/")
        await page.wait_for(READY)
        await page.click("#models-open")
        await page.wait_for(f"{ROWS} === 'tide / in memory / 200 MB,ebb / not loaded / '")
        assert await page.evaluate(BUTTONS) == "Load ebb"  # a request would load it too
        await page.click("#picker-models [aria-label='Load ebb']")
        await server.reach(ebb="loading")
        model = next(model for model in server.served.all if model.model_name == "ebb")
        model.loading_stage = "compile, 3 of 12"
        await page.wait_for(f"{ROWS}.includes('ebb / loading: compile, 3 of 12')")
        assert await page.evaluate("document.querySelector('#picker-models progress').value") == 3
        server.sources["ebb"].may_load.set()
        await page.wait_for(f"{ROWS} === 'tide / sleeping / 200 MB,ebb / in memory / 1.3 GB'")
        await set_value(page, "#picker-key", "admin-secret")
        await page.click("#picker-models [aria-label='Sleep ebb']")
        await server.reach(ebb="asleep")
        await page.wait_for(f"{ROWS}.endsWith('ebb / sleeping / 1.3 GB') && {BUTTONS} === 'Wake tide,Wake ebb'")
        await page.wait_for("document.querySelectorAll('#picker-available tr').length > 0")  # those that can be fetched
        await page.click("#picker-models [data-call=choose][data-model=ebb]")
        await page.wait_for("!document.querySelector('#models-dialog').open")
        await page.wait_for("document.querySelector('#server-model').textContent === 'ebb'")
        await page.wait_for("document.querySelector('#server-state').textContent === 'sleeping'")
        assert page.complaints() == []
        await page.close()


HEADER = "document.querySelector('#server-model').textContent"


async def open_entry(page: Page, title: str) -> None:
    """Opens a conversation by the beginning of its title."""
    found = f"[...document.querySelectorAll('#conversations .title')].find((e) => e.textContent.startsWith({title!r}))"
    await page.wait_for(f"({found})?.click() ?? {found} !== undefined")
    await page.wait_for(f"document.querySelector('#chat-title').textContent.startsWith({title!r})")


async def test_a_conversation_goes_on_with_its_own_model_until_another_one_is_chosen_in_it(browser: Browser) -> None:
    async with several("tide ebb") as server:
        page = await browser.open(server.url + "/")
        await page.wait_for(READY)

        async def answered(question: str, model: str, number: int) -> None:
            await ask(page, question)
            await page.wait_for(f"{ANSWERS} === {number}")
            assert (await page.text(f".message.assistant:nth-of-type({2 * number}) .name")) == model
            assert (await page.evaluate(f"{LAST}.querySelector('.content').textContent")).startswith(f"{model}:")

        await answered("first", "tide", 1)
        await page.click("#chat-new")
        await page.wait_for("document.querySelectorAll('.message').length === 0")
        await choose_model(page, "ebb")
        await answered("second", "ebb", 1)
        await open_entry(page, "first")
        assert await page.evaluate(HEADER) == "tide"
        await answered("again", "tide", 2)
        await choose_model(page, "ebb")
        await answered("and by hand", "ebb", 3)
        await choose_model(page, "tide")
        ended = "nodes.filter(({ role, finish }) => role === 'assistant' && finish !== null).length === 4"
        await until_kept(page, f"conversations.some(({{ model }}) => model === 'tide') && {ended}")
        await reload(page)  # what was chosen by hand is kept with the conversation, before any answer
        await page.wait_for(f"{ANSWERS} === 3 && {HEADER} === 'tide'")
        await open_entry(page, "second")
        assert await page.evaluate(HEADER) == "ebb"
        await page.click("#chat-new")
        await page.wait_for(f"document.querySelectorAll('.message').length === 0 && {HEADER} === 'tide'")
        assert page.complaints() == []
        await page.close()


async def test_where_its_model_is_gone_a_conversation_says_which_one_answers(browser: Browser) -> None:
    server = StubServer()
    server.models = ["tide", "ebb"]
    await server.start()
    page = await browser.open(server.origin + "/")
    await page.wait_for(READY)
    await ask(page, "first")
    await page.wait_for(f"{ANSWERS} === 1")
    assert await page.evaluate("document.querySelector('#chat-other-model').hidden")
    server.models = ["ebb"]
    await until_kept(page, "nodes.some(({ finish }) => finish === 'stop')")
    await reload(page)
    await page.wait_for("!document.querySelector('#chat-other-model').hidden")
    assert await page.text("#chat-other-model") == "tide is not on this server. ebb answers now."
    await ask(page, "second")
    await page.wait_for(f"{ANSWERS} === 2")
    await page.wait_for("document.querySelector('#chat-other-model').hidden")  # it is ebb's conversation now
    assert [request["model"] for request in server.requests] == ["tide", "ebb"]
    assert page.complaints() == []
    await page.close()
    await server.stop()
