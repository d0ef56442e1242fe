"""The parameters of the page in a real browser: what is sent of them, and what is told where one cannot be sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import server_starter
from tests.static.conversation.test_chat_page import ANSWERS, ask, open_chat, reload
from tests.static.support.devtools import Browser, Page
from tests.static.support.stub_server import StubServer
from tests.static.test_tokens_page import set_value

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHOSEN_BY_NOBODY = ("temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "min_p")
SCHEMA = {"type": "object", "properties": {"height": {"type": "number"}}}


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


async def held(page: Page, form: str) -> str:
    """What is said above the buttons of a form."""
    line = f"document.querySelector('#{form} .held')"
    text: str = await page.evaluate(f"{line}.hidden ? '' : {line}.querySelector('span').textContent")
    return text


async def answered(page: Page, server: StubServer, text: str) -> dict[str, Any]:
    """Asks, and returns the body of the request once its answer has ended."""
    before = await page.evaluate(ANSWERS)
    await ask(page, text)
    await page.wait_for(f"{ANSWERS} === {before + 1}")
    return server.requests[-1]


async def open_completion(page: Page) -> None:
    await page.evaluate("location.hash = '#/completion'")
    await page.wait_for("document.querySelector('#story-form').checkVisibility()")
    await set_value(page, "#story-text", "Once upon a time")


async def is_disabled(page: Page, selector: str) -> bool:
    disabled: bool = await page.evaluate(f"document.querySelector({selector!r}).disabled")
    return disabled


async def test_what_nobody_has_touched_is_not_sent(page: Page, server: StubServer) -> None:
    assert await page.text("#temperature-value") == "0.20"
    assert await page.text("#top-p-value") == "0.90"
    assert await page.evaluate("document.querySelector('#parameter-top_k').placeholder") == "40"
    assert await page.evaluate("document.querySelector('#max-tokens').value") == ""
    body = await answered(page, server, "hello")
    assert [name for name in CHOSEN_BY_NOBODY if name in body] == []

    await set_value(page, "#temperature", "0.5")
    await set_value(page, "#max-tokens", "5")
    await set_value(page, "#parameter-top_k", "0")  # the model recommends 40
    body = await answered(page, server, "again")
    assert (body["temperature"], body["max_tokens"], body["top_k"], "top_p" in body) == (0.5, 5, 0, False)

    await page.click("#temperature ~ .origin .reset")
    await set_value(page, "#max-tokens", "")
    await set_value(page, "#parameter-top_k", "")
    body = await answered(page, server, "and again")
    assert [name for name in CHOSEN_BY_NOBODY if name in body] == []


CHIPS = "[...document.querySelectorAll('#FORM .departures:not([hidden]) button')].map((button) => button.textContent)"


async def test_what_is_set_for_all_chats_stands_beside_the_message_and_is_taken_back_there(
    page: Page, server: StubServer
) -> None:
    chips = CHIPS.replace("FORM", "chat-form")
    assert await page.evaluate(chips) == []
    await set_value(page, "#max-tokens", "5")
    assert await page.evaluate(chips) == ["Length 5", "×"]
    await set_value(page, "#temperature", "0.2")  # as the model recommends
    await set_value(page, "#parameter-top_k", "40")
    assert await page.evaluate(chips) == ["Length 5", "×"]
    await set_value(page, "#temperature", "0.5")
    await set_value(page, "#parameter-top_k", "0")
    await set_value(page, "#parameter-stop", "tide")
    await reload(page)  # it holds until it is taken back
    await page.wait_for(f"{chips}.join() === 'Temperature 0.5,×,Length 5,×,top k 0,×,1 more,Reset all'")
    await page.click("#chat-new")
    await page.click("#chat-form .departures button")
    await page.wait_for("document.activeElement.id === 'temperature'")
    await page.click("#chat-form [aria-label='Take back Temperature 0.5']")
    assert await page.evaluate(chips) == ["Length 5", "×", "top k 0", "×", "stop", "×", "Reset all"]
    assert await page.text("#temperature-value") == "0.20"
    assert await page.evaluate("document.activeElement.id") == "chat-input"
    await page.click("#chat-form .departures > button")
    assert await page.evaluate(chips) == []
    body = await answered(page, server, "hello")
    assert [name for name in (*CHOSEN_BY_NOBODY, "stop") if name in body] == []
    await set_value(page, "#parameter-reasoning_effort", "low")
    assert await page.evaluate(chips) == ["reasoning effort low", "×"]
    await open_completion(page)
    assert await page.evaluate(CHIPS.replace("FORM", "story-form")) == []  # it is of chats alone


async def test_a_story_goes_on_until_it_is_done(page: Page, server: StubServer) -> None:
    await open_completion(page)
    await page.click("#story-continue")
    await page.wait_for("document.querySelector('#story-page').dataset.finish === 'stop'")
    body = server.requests[-1]
    assert body["max_tokens"] == 2048 - 12
    assert "temperature" not in body


async def test_what_an_older_page_sent_unasked_counts_as_untouched(page: Page, server: StubServer) -> None:
    old = {"mode": "chat", "temperature": 0.8, "topP": 0.95, "maxTokens": 256, "seed": None}
    await page.evaluate(f"localStorage.setItem('eagre.playground', {json.dumps(json.dumps(old))})")
    await reload(page)
    assert await page.text("#temperature-value") == "0.20"
    body = await answered(page, server, "hello")
    assert [name for name in CHOSEN_BY_NOBODY if name in body] == []


async def test_presets_follow_the_model(page: Page, server: StubServer) -> None:
    await set_value(page, "#preset", "Greedy")
    assert (await answered(page, server, "hello"))["temperature"] == 0
    await set_value(page, "#preset", "As the model recommends")
    body = await answered(page, server, "again")
    assert [name for name in CHOSEN_BY_NOBODY if name in body] == []


async def test_a_schema_that_is_not_json_holds_every_send(page: Page, server: StubServer) -> None:
    await set_value(page, "#schema-text", "{'height':")
    assert "not JSON" in await page.text("#schema-error")
    assert await page.text("#schema-state") == "not valid"
    await page.evaluate("document.querySelector('#chat-input').focus()")
    await page.type("hello")
    await page.press("Enter")
    assert "The JSON schema cannot be sent." in await held(page, "chat-form")
    assert await is_disabled(page, "#chat-send")
    await open_completion(page)
    assert "The JSON schema cannot be sent." in await held(page, "story-form")
    assert await is_disabled(page, "#story-continue")
    await page.click("#tab-tokens")
    await page.wait_for("!document.querySelector('#tokens').hidden")
    await page.click("#tokens-run")
    assert "The JSON schema cannot be sent." in await held(page, "tokens-form")
    assert server.requests == []

    await page.click("#tab-chat")
    await page.click("#chat-form .held button")
    assert await page.evaluate("document.activeElement.id") == "schema-text"
    await set_value(page, "#schema-text", json.dumps(SCHEMA))
    await page.click("#schema-dialog [data-close]")
    assert await held(page, "chat-form") == ""
    await page.click("#chat-send")
    await page.wait_for(f"{ANSWERS} === 1")
    assert server.requests[-1]["response_format"]["json_schema"]["schema"] == SCHEMA
    await open_completion(page)
    await page.click("#story-continue")
    await page.wait_for("document.querySelector('#story-page').dataset.finish === 'stop'")
    assert server.requests[-1]["response_format"]["json_schema"]["schema"] == SCHEMA


async def test_tools_that_are_not_json_hold_a_chat_and_no_story(page: Page, server: StubServer) -> None:
    await set_value(page, "#tools-text", "[{")
    assert "The tools cannot be sent." in await held(page, "chat-form")
    assert await is_disabled(page, "#chat-send")
    await open_completion(page)
    assert await page.evaluate("document.querySelector('#tools-open').hidden")
    assert await held(page, "story-form") == ""
    await page.click("#story-continue")
    await page.wait_for("document.querySelector('#story-page').dataset.finish === 'stop'")
    assert len(server.requests) == 1


@pytest.mark.parametrize("length", ["0", "2048", "8192", "1.5", "-3"])
async def test_a_length_outside_the_context_is_told_at_its_field(page: Page, server: StubServer, length: str) -> None:
    assert await page.evaluate("document.querySelector('#max-tokens').max") == "2047"
    await set_value(page, "#max-tokens", length)
    error = await page.text("#max-tokens-error")
    assert "whole number" in error if length == "1.5" else error.endswith("it must be from 1 to 2047.")
    assert await page.evaluate("document.querySelector('#max-tokens').value") == length, "it stays as it was typed"
    assert await held(page, "chat-form") == error
    await ask(page, "hello")
    assert server.requests == []
    await set_value(page, "#max-tokens", "2047")
    await page.press("Enter")
    await page.wait_for(f"{ANSWERS} === 1")
    assert server.requests[-1]["max_tokens"] == 2047


async def test_the_server_says_what_limits_its_parameters_have(browser: Browser) -> None:
    async with server_starter() as start:
        server = await start(FakeEngineClient(respond=lambda _prompt, _params: list(b"tide")))
        page = await open_chat(browser, server.url)
        await page.evaluate("document.querySelector('#more-parameters').open = true")
        await page.wait_for("document.querySelector('#parameter-top_k-note').textContent !== ''")
        for name, value, told in [
            ("top_k", "-5", "top k is −5; it must be at least −1."),
            ("top_k", "2.5", "top k is 2.5; it must be a whole number."),
            ("min_p", "1.5", "min p is 1.5; it must be from 0 to 1."),
            ("typical_p", "0", "typical p is 0; it must be above 0, at most 1."),
        ]:
            await set_value(page, f"#parameter-{name}", value)
            assert await page.text(f"#parameter-{name} ~ .invalid") == told
            assert await held(page, "chat-form") == told
            await ask(page, "hello")
            await set_value(page, f"#parameter-{name}", "")
        assert server.engine.submitted == []
        assert await held(page, "chat-form") == ""
        assert page.complaints() == []
        await page.close()


async def test_the_transport_is_an_advanced_setting(page: Page) -> None:
    await page.click("#settings-toggle")
    radio = "document.querySelector('input[name=transport]')"
    assert not await page.evaluate(f"{radio}.checkVisibility()")
    await page.click("#advanced summary")
    assert await page.evaluate(f"{radio}.checkVisibility()")
