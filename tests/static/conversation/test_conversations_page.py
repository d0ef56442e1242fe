"""What a reader brings to a chat and takes away from it, in a real browser: files, instructions, kept conversations."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.static.conversation.test_chat_page import ANSWERS, UNDO, ask, open_chat, reload
from tests.static.support.devtools import Browser, Page
from tests.static.support.stub_server import StubServer
from tests.static.test_tokens_page import set_value

pytestmark = pytest.mark.asyncio(loop_scope="session")

ENTRIES = "[...document.querySelectorAll('#conversations .name')].map((part) => part.textContent)"
# Gives a file to a field as if the reader had chosen it.
CHOOSE = """
(() => {
  const files = new DataTransfer();
  files.items.add(new File([TEXT], NAME));
  const field = document.querySelector(FIELD);
  field.files = files.files;
  field.dispatchEvent(new Event("change"));
})()
"""


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[StubServer]:
    server = StubServer()
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, server: StubServer) -> AsyncIterator[Page]:
    page = await open_chat(browser, server.origin)
    yield page
    assert page.complaints() == []
    await page.close()


async def choose(page: Page, field: str, name: str, text: str) -> None:
    script = CHOOSE.replace("TEXT", json.dumps(text)).replace("NAME", json.dumps(name))
    await page.evaluate(script.replace("FIELD", json.dumps(field)))


async def open_form(page: Page, name: str) -> None:
    await page.click(f"#{name}-open")
    await page.evaluate(f"for (const part of document.querySelectorAll('#{name}-dialog details')) part.open = true")


async def test_a_file_and_instructions_go_with_the_question(page: Page, server: StubServer) -> None:
    await set_value(page, "#system", "Be brief.")
    await choose(page, "#chat-file", "notes.txt", "high water at ```six```")
    await page.wait_for("document.querySelector('#chat-files .chip') !== null")
    await choose(page, "#chat-file", "picture.png", "\0")
    await page.wait_for("document.querySelector('#chat-error').textContent.includes('not a text file')")
    await ask(page, "When?")
    await page.wait_for(f"{ANSWERS} === 1")
    system, question = server.requests[-1]["messages"]
    assert system == {"role": "system", "content": "Be brief."}
    assert question["content"] == "notes.txt\n````\nhigh water at ```six```\n````\n\nWhen?"
    await set_value(page, "#max-tokens", "3")
    await page.click("[data-action=regenerate]")
    await page.wait_for("document.querySelector('.message.assistant')?.dataset.finish === 'length'")
    await page.click(".message.assistant [data-action=continue]")
    await page.wait_for("document.querySelector('.message.assistant .content').textContent.endsWith('a there was a')")
    assert server.requests[-1]["continue_final_message"] is True


async def test_conversations_are_found_renamed_taken_away_and_brought_back(page: Page) -> None:
    await ask(page, "Why is the sky blue?")
    await page.wait_for(f"{ANSWERS} === 1")
    await page.click("#chat-new")
    await page.wait_for(f"{ANSWERS} === 0")
    await ask(page, "A loop in Python")
    await page.wait_for(f"{ANSWERS} === 1")
    await page.wait_for(f"{ENTRIES}.includes('A loop in Python')")  # it is kept
    await reload(page)
    await page.wait_for(f"{ENTRIES}.length === 2")
    await set_value(page, "#conversation-search", "sky")
    await page.wait_for(f"{ENTRIES}.join() === 'Why is the sky blue?'")
    await page.evaluate("document.querySelector('#conversation-search').focus()")
    await page.press("Enter")  # opens the first that is found
    await page.wait_for("document.querySelector('.message.user .content')?.textContent === 'Why is the sky blue?'")
    await page.click("#conversations .tools button")
    await set_value(page, ".rename input", "Colours of the air")
    await page.evaluate("document.querySelector('.rename').requestSubmit()")
    await set_value(page, "#conversation-search", "colours")
    await page.wait_for(f"{ENTRIES}.join() === 'Colours of the air'")
    await page.send("Page.setDownloadBehavior", {"behavior": "deny"})
    await page.evaluate(
        "{ const make = URL.createObjectURL; URL.createObjectURL = (blob) => make.call(URL, globalThis.saved = blob); }"
    )
    await page.click("#export-all")
    await page.wait_for("globalThis.saved !== undefined")
    exported = await page.evaluate("saved.text()")
    await page.click("#chat-new")  # ends the search, which would hide the new one
    await page.wait_for("document.querySelector('#conversation-search').value === ''")
    await page.wait_for(f"{ENTRIES}.length === 2")
    for left in (1, 0):
        await page.click("#conversations .tools button:last-child")
        await page.wait_for(f"{ENTRIES}.length === {left}")
    await page.click(UNDO)
    await page.wait_for(f"{ENTRIES}.length === 1")
    await page.click("#conversations .tools button:last-child")
    await page.wait_for(f"{ENTRIES}.length === 0")
    await choose(page, "#import-file", "conversations.json", exported)
    await page.wait_for(f"{ENTRIES}.length === 2")
    await page.evaluate("[...document.querySelectorAll('#conversations .title')].at(-1).click()")
    await page.wait_for("document.querySelectorAll('.content').length === 2")
    assert await page.text("#chat-title") in ("Colours of the air", "A loop in Python")


BIN = "[...document.querySelectorAll('.bin .name')].map((part) => part.textContent).join()"
# Clicks with a pointer on what lies in the place of the first conversation, as soon as it has been deleted.
CLICK_AGAIN = """
new MutationObserver((_, observer) => {
  observer.disconnect();
  const [next] = document.querySelectorAll("#conversations .tools button:last-child");
  next.dispatchEvent(new MouseEvent("click", { bubbles: true, detail: 2 }));
  document.body.dataset.clicked = next.title;
}).observe(document.querySelector("#conversations"), { childList: true });
"""


async def asked(page: Page, question: str) -> None:
    """Asks in a new chat."""
    await page.click("#chat-new")
    await page.wait_for(f"{ANSWERS} === 0")
    await ask(page, question)
    await page.wait_for(f"{ANSWERS} === 1")
    await page.wait_for(f"{ENTRIES}.includes({question!r})")


async def test_what_was_deleted_comes_back_from_its_list_after_a_reload_or_goes_for_good(page: Page) -> None:
    for question in ("one", "two", "three"):
        await asked(page, question)
    assert await page.evaluate("document.querySelector('#bin-open').hidden")
    for left in ("two,one", "one", ""):
        await page.click("#conversations .tools button:last-child")
        await page.wait_for(f"{ENTRIES}.join() === {left!r}")
    await page.wait_for("document.querySelector('#bin-open').textContent === 'Recently deleted (3)'")
    await reload(page)
    await page.click("#bin-open:not([hidden])")
    await page.wait_for(f"{BIN} === 'one,two,three'")
    await page.click(".bin [aria-label='Restore: two']")
    await page.wait_for(f"{BIN} === 'one,three' && {ENTRIES}.join() === 'two'")
    await page.click(".bin [aria-label='Delete for good: one']")
    await page.wait_for(f"{BIN} === 'three'")
    await page.click(".bin > .small")
    await page.wait_for("document.querySelector('.bin > .small').textContent.startsWith('Click again')")
    assert await page.evaluate(BIN) == "three"
    await page.click(".bin > .small")
    await page.wait_for(f"{BIN} === ''")
    await page.click(".bin .quiet")
    await page.wait_for("document.querySelector('.bin') === null && document.querySelector('#bin-open').hidden")
    await page.click("#conversations .title")
    await page.wait_for(f"{ANSWERS} === 1 && document.querySelector('#chat-title').textContent === 'two'")
    await reload(page)
    await page.wait_for(f"{ENTRIES}.join() === 'two'")


async def test_a_double_click_deletes_one_conversation(page: Page) -> None:
    for question in ("one", "two"):
        await asked(page, question)
    await page.evaluate(CLICK_AGAIN + 'document.querySelector("#conversations .tools button:last-child").click();')
    await page.wait_for("document.body.dataset.clicked === 'Delete'")
    await page.wait_for("document.querySelector('#bin-open').textContent === 'Recently deleted (1)'")
    await page.wait_for("!document.querySelector('#toast').hidden")
    assert await page.evaluate(ENTRIES) == ["one"]


async def test_a_conversation_is_copied_whole_and_up_to_a_message(page: Page) -> None:
    for number, question in enumerate(("one", "two"), start=1):
        await ask(page, question)
        await page.wait_for(f"{ANSWERS} === {number}")
    await page.click(".message.assistant [data-action=fork]")
    await page.wait_for(f"{ENTRIES}.sort().join() === 'one,one (copy)'")
    await page.wait_for(f"{ANSWERS} === 1")
    assert await page.text("#chat-title") == "one (copy)"
    await page.click("[aria-label='Duplicate one']")
    await page.wait_for(f"{ENTRIES}.length === 3 && {ANSWERS} === 2")
    await ask(page, "three")
    await page.wait_for(f"{ANSWERS} === 3")
    await page.evaluate(
        "[...document.querySelectorAll('#conversations .title')].find((e) => e.textContent === 'one').click()"
    )
    await page.wait_for(f"document.querySelector('#chat-title').textContent === 'one' && {ANSWERS} === 2")


async def test_presets_tools_and_a_schema_made_by_forms_are_sent(page: Page, server: StubServer) -> None:
    await set_value(page, "#preset", "Inventive")
    await set_value(page, "#preset-name", "Mine")
    await page.evaluate("document.querySelector('#preset-form').requestSubmit()")
    await set_value(page, "#preset", "Greedy")
    assert await page.text("#temperature-value") == "0.00"
    await reload(page)
    await set_value(page, "#preset", "Mine")
    await open_form(page, "tools")
    await set_value(page, "#tool-name", "tide")
    await set_value(page, "#tools-rows li input", "port")
    await page.evaluate("document.querySelector('#tools-form').requestSubmit()")
    await page.click("#tools-dialog [data-close]")
    await open_form(page, "schema")
    await set_value(page, "#schema-rows li input", "height")
    await page.evaluate("document.querySelector('#schema-form').requestSubmit()")
    await page.click("#schema-dialog [data-close]")
    await page.click("#chat-schema:not([hidden])")  # a message is written below the schema that it obeys
    await page.wait_for("document.querySelector('#schema-dialog').open")
    await page.click("#schema-dialog [data-close]")
    await ask(page, "When?")
    await page.wait_for(f"{ANSWERS} === 1")
    body = server.requests[-1]
    assert (body["temperature"], body["top_p"], body["min_p"]) == (1.1, 1, 0.05)
    (tool,) = body["tools"]
    assert (tool["function"]["name"], list(tool["function"]["parameters"]["properties"])) == ("tide", ["port"])
    assert list(body["response_format"]["json_schema"]["schema"]["properties"]) == ["height"]
