"""The playground in a real browser, against a server that answers from a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.patience import PATIENCE_S
from tests.static.support.devtools import Browser, Page
from tests.static.support.stub_server import MODEL, REFUSAL, STORY, StubServer
from tests.static.test_tokens_page import choose_model

pytestmark = pytest.mark.asyncio(loop_scope="session")

TRANSPORTS = ("sse", "websocket")
CONTINUED = "Once upon a time" + "".join(STORY)
STORY_TEXT = "document.querySelector('#story-text').value"
STORY_FINISH = "document.querySelector('#story-page').dataset.finish"
CHAT_FINISH = "[...document.querySelectorAll('.message.assistant')].at(-1)?.dataset.finish"


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[StubServer]:
    server = StubServer()
    await server.start()
    yield server
    await server.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, server: StubServer) -> AsyncIterator[Page]:
    """The playground with its server ready. After the test: nothing was asked of any other origin."""
    page = await browser.open(server.origin + "/")
    await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
    yield page
    foreign = [url for url in page.urls() if url.partition("//")[2].partition("/")[0] != server.origin[7:]]
    assert foreign == []
    await page.close()


async def choose(page: Page, transport: str) -> None:
    await page.click(f"input[name=transport][value={transport}]")


async def select(page: Page, selector: str, value: str) -> None:
    await page.evaluate(
        f"(() => {{ const field = document.querySelector({selector!r}); field.value = {value!r};"
        "field.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


async def write_story(page: Page, prompt: str) -> None:
    """Replaces the text of a completion and continues it, as a reader would from the keyboard."""
    if await page.evaluate("document.querySelector('#chat').dataset.kind") != "completion":
        await page.click("#completion-new")
        await page.wait_for("document.querySelector('#chat').dataset.kind === 'completion'")
    await page.evaluate("document.querySelector('#story-text').focus()")
    await page.evaluate("document.querySelector('#story-text').select()")
    await page.type(prompt)
    await page.press("Enter")


async def type_message(page: Page, text: str) -> None:
    await page.evaluate("document.querySelector('#chat-input').focus()")
    await page.type(text)


async def ask(page: Page, question: str) -> None:
    await type_message(page, question)
    await page.press("Enter")


async def story(page: Page) -> str:
    text: str = await page.evaluate("document.querySelector('#story-text').value")
    return text


async def test_what_is_asked_ahead_is_asked_once_and_holds_once(page: Page, server: StubServer) -> None:
    requests = [params for method, params in page.events if method == "Network.requestWillBeSent"]
    began = requests[0]["timestamp"]  # a page that is ready asks again after five seconds
    urls = [params["request"]["url"] for params in requests if params["timestamp"] < began + 5]
    asked = [url.rpartition("/")[2] for url in urls if url.endswith(("/readiness", "/v1/models"))]
    assert sorted(asked) == ["models", "readiness"]
    server.is_ready = False
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await page.wait_for("document.querySelector('#server').dataset.state === 'loading'")
    assert [said for said in page.complaints() if "preload" in said] == []


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_one_click_continues_the_example(page: Page, server: StubServer, transport: str) -> None:
    await choose(page, transport)
    await page.click("#completion-new")
    await page.wait_for("document.querySelector('#chat').dataset.kind === 'completion'")
    await page.click("#story-examples button:last-child")
    assert await page.wait_for(STORY_FINISH) == "stop"
    example = "The best way to spend a rainy afternoon is"
    assert await story(page) == example + "".join(STORY)
    figures = await page.text("#story-figures")
    assert "first token" in figures
    assert figures.endswith(f"{len(STORY)} tokenscomplete")
    request = server.requests[0]
    assert request["prompt"] == example
    assert request["model"] == MODEL
    assert ("type" in request) == (transport == "websocket")
    assert page.complaints() == []


async def test_the_story_grows_while_it_is_written(page: Page) -> None:
    await write_story(page, "endless")
    length = "document.querySelector('#story-text').value.length"
    early = await page.wait_for(f"{length} > 20 && {length}")
    await page.wait_for(f"{length} > {early}")
    assert await page.evaluate(STORY_FINISH) == ""
    await page.wait_for("document.querySelector('#story-figures').textContent.includes('tokens/s')")
    await page.press("Escape")
    await page.wait_for(STORY_FINISH)


async def test_undo_and_another_continuation(page: Page, server: StubServer) -> None:
    await write_story(page, "Once upon a time")
    await page.wait_for(STORY_FINISH)
    await page.click("#story-retry")
    await page.wait_for(f"document.querySelector('#story-branches').textContent.includes('2/2') && {STORY_FINISH}")
    assert [request["prompt"] for request in server.requests] == ["Once upon a time"] * 2
    assert await story(page) == CONTINUED
    await page.wait_for("!document.querySelector('#story-undo').disabled")
    await page.click("#story-undo")
    await page.wait_for(f"{STORY_TEXT} === 'Once upon a time'")
    await page.click("#toast-undo")
    await page.wait_for(f"{STORY_TEXT} === {json.dumps(CONTINUED)}")
    await page.wait_for("!document.querySelector('#story-undo').disabled")
    await page.click("#story-undo")
    await page.click("#completion-new")
    await page.wait_for(f"{STORY_TEXT} === ''")


async def test_the_link_of_a_setup_brings_the_models_of_the_settings_and_of_a_column(
    browser: Browser, server: StubServer
) -> None:
    server.models = ["one", "two", "three"]
    page = await browser.open(server.origin + "/")
    await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
    await page.click("#tab-tokens")
    await page.wait_for("!document.querySelector('#tokens').hidden")
    await choose_model(page, "two")
    for selector, value in (
        ("#tokens-columns", "2"),
        (".column:last-child [data-name=model]", "three"),
    ):
        await select(page, selector, value)
    await page.click("#tokens-link")
    fragment = await page.wait_for("location.hash.startsWith('#setup=') && location.hash")
    await choose_model(page, "one")
    await page.close()
    page = await browser.open(f"{server.origin}/{fragment}")
    await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
    await page.wait_for("!document.querySelector('#tokens').hidden")
    assert await page.text("#server-model") == "two"
    await page.click("#tokens-run")
    await page.wait_for("!document.querySelector('#tokens-run').hidden")
    assert sorted(request["model"] for request in server.requests) == ["three", "two"]
    assert page.complaints() == []
    await page.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("way", ["button", "key"])
async def test_stop_ends_the_answer_here_and_on_the_server(
    page: Page, server: StubServer, transport: str, way: str
) -> None:
    await choose(page, transport)
    await write_story(page, "endless")
    await page.wait_for("document.querySelector('#story-text').value.length > 30")
    if way == "button":
        await page.click("#story-stop")
    else:
        await page.press("Escape")
    assert await page.wait_for(STORY_FINISH) == "abort"
    stopped = await story(page)
    assert stopped.startswith("endless more more")
    assert (await page.text("#story-figures")).endswith("stopped")
    async with asyncio.timeout(PATIENCE_S):
        await server.aborted.wait()
    assert await story(page) == stopped
    assert not await page.evaluate("document.querySelector('#story-continue').hidden")
    assert page.complaints() == []


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    ("script", "words"),
    [("refuse", REFUSAL["message"]), ("break", "the engine has failed"), ("drop", "The connection to the server")],
)
async def test_errors_are_told_in_words_and_the_next_answer_works(
    page: Page, server: StubServer, transport: str, script: str, words: str
) -> None:
    await choose(page, transport)
    await write_story(page, script)
    if script == "drop":
        await page.wait_for(f"{STORY_TEXT} === 'drop two tokens'")
        server.may_drop.set()
    assert await page.wait_for(STORY_FINISH) == "error"
    assert str(words) in await page.text("#story-error")
    if script != "refuse":
        assert await story(page) == f"{script} two tokens"
    await write_story(page, "Once upon a time")
    await page.wait_for(f"{STORY_FINISH} === 'stop'")
    assert await story(page) == CONTINUED
    assert await page.evaluate("document.querySelector('#story-error').hidden")


# Tells the page that something is kept only once `goOn` is called.
HOLD_WRITES = """
const gate = new Promise((go) => (window.goOn = go));
Object.defineProperty(IDBTransaction.prototype, "oncomplete", {
  set(heard) { this.addEventListener("complete", (event) => gate.then(() => heard.call(this, event))); },
});
"""


async def test_a_refused_completion_takes_nothing_along_that_was_asked_before_its_end_was_kept(
    page: Page, server: StubServer
) -> None:
    await page.click("#completion-new")
    await page.wait_for("document.querySelector('#chat').dataset.kind === 'completion'")
    await page.evaluate(f"(() => {{ {HOLD_WRITES} }})()")
    await write_story(page, "refuse")
    await page.wait_for(f"{STORY_FINISH} === 'error'")
    await write_story(page, "refuse goes on")
    await page.evaluate("window.goOn()")
    await page.wait_for(f"{STORY_FINISH} === 'stop'")
    assert await story(page) == "refuse goes on" + "".join(STORY)
    assert await page.evaluate("document.querySelector('#story-error').hidden")
    await page.click("#story-undo")
    await page.wait_for(f"{STORY_TEXT} === 'refuse goes on'")
    assert [request["prompt"] for request in server.requests] == ["refuse", "refuse goes on"]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_conversation(page: Page, server: StubServer, transport: str) -> None:
    await choose(page, transport)
    await page.click("#tab-chat")
    await page.click("#settings-toggle")
    await page.evaluate("document.querySelector('#system').select()")
    await page.type("Be brief.")
    await ask(page, "Hello?")
    assert await page.wait_for(CHAT_FINISH) == "stop"
    await ask(page, "And?")
    await page.wait_for("document.querySelectorAll('.message.assistant[data-finish=stop]').length === 2")
    answer = "".join(STORY)
    assert await page.text(".message.assistant .content") == answer.strip()
    assert "first token" in await page.text(".message.assistant .figures")
    assert server.requests[1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "And?"},
    ]
    assert page.complaints() == []


async def test_code_is_set_as_code_and_markup_stays_text(page: Page) -> None:
    await page.click("#tab-chat")
    await ask(page, "code")
    await page.wait_for(CHAT_FINISH)
    assert await page.text(".content pre code") == "print('hi')\n"
    assert await page.text(".content .code-head span") == "python"
    assert "<img src=x onerror=alert(1)>" in await page.text(".message.assistant .content")
    assert await page.evaluate("document.querySelector('.content img')") is None


async def test_a_refused_question_is_not_lost_nor_remembered(page: Page, server: StubServer) -> None:
    await page.click("#tab-chat")
    await ask(page, "refuse")
    assert await page.wait_for(CHAT_FINISH) == "error"
    assert await page.text(".message .error") == REFUSAL["message"]
    await page.wait_for("document.querySelector('#chat-input').value === 'refuse'")  # once the answer is kept
    await page.evaluate("document.querySelector('#chat-input').value = ''")
    await ask(page, "Hello?")
    await page.wait_for(f"{CHAT_FINISH} === 'stop'")
    assert [message["content"] for message in server.requests[1]["messages"] if message["role"] == "user"] == ["Hello?"]


async def test_shift_enter_starts_a_line(page: Page, server: StubServer) -> None:
    await page.click("#tab-chat")
    await type_message(page, "one")
    await page.press("Enter", shift=True)
    await page.type("two")
    assert server.requests == []
    await page.press("Enter")
    await page.wait_for(CHAT_FINISH)
    assert server.requests[0]["messages"][-1]["content"] == "one\ntwo"


async def test_a_new_conversation_leaves_the_old_ones_answer_running(page: Page, server: StubServer) -> None:
    await ask(page, "endless")
    length = "document.querySelector('.message.assistant .content')?.textContent.length"
    await page.wait_for(f"{length} > 20")
    await type_message(page, "a draft")
    await page.click("#chat-new")
    await page.wait_for("document.querySelectorAll('.message').length === 0")
    assert await page.evaluate("document.querySelector('#chat-input').value") == ""
    assert not await page.evaluate("document.querySelector('#chat-send').hidden")
    await ask(page, "Hello?")
    await page.wait_for(f"{CHAT_FINISH} === 'stop'")
    assert [message["role"] for message in server.requests[1]["messages"]] == ["system", "user"]
    await page.wait_for("document.querySelectorAll('#conversations .dot.streaming').length === 1")
    assert not server.aborted.is_set()
    await page.evaluate("history.back()")  # to the new conversation's place before it had an address
    await page.evaluate("document.querySelector('#conversations .entry:has(.streaming) a').click()")
    early = await page.wait_for(length)
    await page.wait_for(f"{length} > {early}")
    assert await page.evaluate("document.querySelector('#chat-input').value") == "a draft"
    await page.press("Escape")
    await page.wait_for(f"{CHAT_FINISH} === 'abort'")
    async with asyncio.timeout(PATIENCE_S):
        await server.aborted.wait()


async def test_settings_go_into_requests_and_survive_a_reload(page: Page, server: StubServer) -> None:
    settings = {"temperature": 0.5, "top-p": 0.7, "max-tokens": 3, "seed": 42}
    await choose(page, "websocket")
    for id_, value in settings.items():
        await page.evaluate(
            f"(element => {{ element.value = {json.dumps(str(value))};"
            f" element.dispatchEvent(new Event('input', {{bubbles: true}})); }})(document.getElementById('{id_}'))"
        )
    await page.evaluate("document.body.dataset.old = 'yes'")
    await page.send("Page.reload")
    await page.wait_for("!document.body?.dataset.old && document.querySelector('#server')?.dataset.state === 'ready'")
    await write_story(page, "Once upon a time")
    assert await page.wait_for(STORY_FINISH) == "length"
    assert await story(page) == "Once upon a time" + "".join(STORY[:3])
    request = server.requests[0]
    assert request["type"] == "generate"
    assert (request["temperature"], request["top_p"], request["max_tokens"], request["seed"]) == (0.5, 0.7, 3, 42)


async def test_a_reader_who_scrolled_back_is_left_in_peace(page: Page) -> None:
    await page.click("#tab-chat")
    await ask(page, "endless")
    log = "document.querySelector('#chat-log')"
    await page.wait_for(f"{log}.scrollHeight > {log}.clientHeight + 200")
    gap = await page.evaluate(f"{log}.scrollHeight - {log}.scrollTop - {log}.clientHeight")
    assert gap < 60, "it follows the end"
    await page.evaluate(f"{log}.scrollTop = 0")
    height = await page.evaluate(f"{log}.scrollHeight")
    await page.wait_for(f"{log}.scrollHeight > {height}")
    assert await page.evaluate(f"{log}.scrollTop") == 0
    await page.press("Escape")
    await page.wait_for(CHAT_FINISH)


async def test_the_server_state_is_shown_and_recovers(browser: Browser) -> None:
    server = StubServer()
    server.is_ready = False
    await server.start()
    page = await browser.open(server.origin + "/")
    await page.wait_for("document.querySelector('#server-state')?.textContent === 'loading the model…'")
    assert await page.text("#server-stage") == "compile, 3 of 12"
    assert await page.evaluate("document.querySelector('#chat-send').disabled")
    server.is_ready = True
    await page.wait_for("document.querySelector('#server').dataset.state === 'ready'")
    assert await page.text("#server-model") == MODEL
    assert not await page.evaluate("document.querySelector('#chat-send').disabled")

    await server.stop()
    await write_story(page, "Once upon a time")
    await page.wait_for("document.querySelector('#server').dataset.state === 'lost'")
    await page.wait_for("document.querySelector('#story-error').textContent.includes('cannot be reached')")

    await server.start(server.port)
    await page.wait_for("document.querySelector('#server').dataset.state === 'ready'")
    await page.click("#story-continue")
    await page.wait_for(f"{STORY_FINISH} === 'stop'")
    assert await story(page) == CONTINUED
    await page.close()
    await server.stop()


async def test_each_place_has_an_address_and_back_and_forward_lead_through_them(page: Page) -> None:
    await ask(page, "Hello?")
    await page.wait_for(CHAT_FINISH)
    address = await page.wait_for("location.hash.startsWith('#/c/') && location.hash")
    await page.click("#tab-engine")
    await page.wait_for("!document.querySelector('#engine').hidden && document.querySelector('#chat').hidden")
    await page.click("#completion-new")
    await page.wait_for("document.querySelector('#chat').dataset.kind === 'completion'")
    await page.evaluate("history.go(-2)")
    await page.wait_for(f"location.hash === '{address}' && document.querySelectorAll('.message').length === 2")
    await page.evaluate("history.forward()")
    await page.wait_for("!document.querySelector('#engine').hidden")
    await page.evaluate(f"location.hash = '{address}'")
    await page.wait_for("document.querySelector('#conversations [aria-current=page]') !== null")
    await page.evaluate("location.hash = '#/c/0123456789abcdef'")
    await page.wait_for("document.querySelector('#chat-title').textContent.includes('not in this browser')")


@pytest.mark.parametrize(
    ("width", "height", "language"),
    [(320, 560, "en"), (390, 780, "en"), (1200, 800, "en"), (320, 560, "de"), (390, 780, "de")],
)
async def test_nothing_is_wider_than_the_screen_and_every_control_has_a_name(
    browser: Browser, server: StubServer, width: int, height: int, language: str
) -> None:
    page = await browser.open(server.origin + "/", width=width, height=height)
    await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
    if language != "en":
        await select(page, "#language", language)  # which loads the page again
        await page.wait_for(
            f"document.documentElement?.lang === '{language}'"
            " && document.querySelector('#server')?.dataset.state === 'ready'"
        )
    for tab in ("#tab-tokens", "#tab-engine", "#completion-new", "#chat-new"):
        await page.click(tab)
        await page.wait_for("document.querySelector('main > section:not([hidden])') !== null")
        assert await page.evaluate("document.documentElement.scrollWidth") <= width
        assert await page.evaluate("document.documentElement.scrollHeight") <= height
    await page.click("#tab-chat")
    await ask(page, "What is the longest title that a conversation may have, and the longestwordinit" * 2)
    await page.wait_for(CHAT_FINISH)
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    for number in range(2, 5):  # what does not fit scrolls in the log, and not with the page
        await ask(page, "endless\n" * 9 + "What else?")
        await page.wait_for(f"document.querySelectorAll('.message.assistant[data-finish]').length === {number}")
    assert await page.evaluate("document.documentElement.scrollHeight") <= height
    await page.click("#settings-toggle")
    await page.evaluate("document.querySelector('#more-parameters').open = true")
    assert await page.evaluate("document.documentElement.scrollHeight") <= height
    nameless = await page.evaluate(
        """[...document.querySelectorAll('button, textarea, input')]
             .filter(control => !control.textContent.trim() && !control.labels?.length && !control.ariaLabel)
             .map(control => control.id)"""
    )
    assert nameless == []
    await page.close()
