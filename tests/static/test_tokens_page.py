"""The tab of tokens in a real browser: against the application over the fake engine, and over the real model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from engine.client import EngineClient
from engine.engine import Engine
from sampling.host.params import SamplingParams
from server.text.text_model import TextModel
from tests.fakes.engine_client import FakeEngineClient
from tests.server.conftest import RunningServer, server_starter
from tests.server.support.real_server import serving
from tests.static.support.devtools import Browser, Page
from tests.static.support.trace_events import check_trace

pytestmark = pytest.mark.asyncio(loop_scope="session")

SHOWN = "[...document.querySelectorAll('.column:nth-child(COLUMN) .tokens .token')].map((token) => token.textContent)"
IS_DONE = "!document.querySelector('#tokens-run').hidden && document.querySelectorAll('.tokens .token').length > 0"
ARE_DRAWN = "document.querySelector('.column .tokens[aria-busy]') === null"
CARD = "#token-card .card-head"


def letters(prompt: Sequence[int], _params: SamplingParams) -> Sequence[int]:
    """Ten letters that follow from the whole prompt."""
    return [97 + (sum(prompt) + 3 * at) % 26 for at in range(10)]


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def server() -> AsyncIterator[RunningServer]:
    async with server_starter() as start:
        yield await start(FakeEngineClient(respond=letters, max_model_len=2048))


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, server: RunningServer) -> AsyncIterator[Page]:
    page = await open_tokens(browser, server.url)
    yield page
    assert page.complaints() == []
    await page.close()


async def open_tokens(browser: Browser, url: str, fragment: str = "") -> Page:
    page = await browser.open(f"{url}/{fragment}")
    await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
    await page.click("#tab-tokens")
    await page.wait_for("!document.querySelector('#tokens').hidden")
    await set_value(page, "#max-tokens", "8")
    return page


async def set_value(page: Page, selector: str, value: str) -> None:
    await page.evaluate(
        f"(() => {{ const field = document.querySelector({selector!r}); field.value = {value!r};"
        "for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind, {bubbles: true})); })()"
    )


async def choose_model(page: Page, name: str) -> None:
    """Chooses the model that answers, in the list behind the name in the header."""
    await page.click("#models-open")
    await page.click(f"#picker-models [data-call=choose][data-model='{name}']")
    await page.wait_for(f"document.querySelector('#server-model').textContent === {name!r}")


async def run(page: Page) -> list[str]:
    await page.click("#tokens-run")
    await page.wait_for(IS_DONE)
    return await shown(page)


async def shown(page: Page, column: int = 1) -> list[str]:
    """The tokens, once all of them are drawn: a frame has as many as fit into it."""
    await page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    await page.wait_for(ARE_DRAWN)
    texts: list[str] = await page.evaluate(SHOWN.replace("COLUMN", str(column)))
    return texts


async def branch(page: Page, at: int, alternative: int) -> list[str]:
    """Clicks on a token and on one of its alternatives, and returns the tokens of the branch."""
    num_before = await page.evaluate("document.querySelectorAll('.branches button').length")
    await page.click(f".tokens [data-at='{at}']")
    await page.evaluate(f"document.querySelectorAll('.alternatives button:enabled')[{alternative}].click()")
    await page.wait_for(f"document.querySelectorAll('.branches button').length > {num_before}")
    await page.wait_for(IS_DONE)
    return await shown(page)


async def saved_trace(page: Page, key: str) -> str:
    """The file that the button of the trace saves."""
    await page.send("Page.setDownloadBehavior", {"behavior": "deny"})
    await page.evaluate(
        "{ const make = URL.createObjectURL; URL.createObjectURL = (blob) => make.call(URL, globalThis.saved = blob); }"
    )
    await set_value(page, "#engine-key", key)
    await page.click("#engine-trace")
    await page.wait_for("document.querySelector('#engine-message').textContent.startsWith('The trace is saved')")
    text: str = await page.evaluate("globalThis.saved.text()")
    return text


async def test_each_token_tells_what_the_server_says_of_it(page: Page, server: RunningServer) -> None:
    server.engine.num_cached_tokens = 5
    texts = await run(page)
    server.engine.num_cached_tokens = 0
    await page.wait_for("document.querySelectorAll('.prompt-tokens .cached').length === 5")
    assert await page.text(".prompt-tokens") == "Once upon a time"
    assert await page.evaluate("document.querySelectorAll('.tokens [class*=shade]').length") == 8
    await set_value(page, "#tokens-colouring", "none")
    assert await shown(page) == texts
    assert await page.evaluate("document.querySelectorAll('.tokens [class*=shade]').length") == 0
    body = {"prompt": "Once upon a time", "max_tokens": 8, "logprobs": 5, "return_token_ids": True}
    _, answer = await server.post("/v1/completions", body)
    (choice,) = answer["choices"]
    assert texts == choice["logprobs"]["tokens"]
    for at in (0, 7):
        await page.click(f".tokens [data-at='{at}']")
        head = await page.text(CARD)
        assert f"id {choice['token_ids'][at]} " in head
        assert f"rank {choice['logprobs']['token_ranks'][at]}" in head
        assert await page.evaluate("document.querySelectorAll('.alternatives button').length") == 5
    await page.evaluate("document.querySelector('.tokens').focus()")
    await page.press("ArrowLeft")
    assert (await page.text(CARD)).startswith('"' + texts[6])


async def test_a_click_on_an_alternative_branches_and_plays_the_same_again(page: Page, server: RunningServer) -> None:
    first = await run(page)
    num_submitted = len(server.engine.submitted)
    other = await branch(page, 3, 1)
    assert other[:3] == first[:3]
    assert other[3:] != first[3:]
    stream = server.engine.submitted[num_submitted]
    assert stream.prompt_token_ids[:16] == list(b"Once upon a time")
    assert list(stream.prompt_token_ids[16:19]) == [ord(text) for text in first[:3]]
    assert len(stream.prompt_token_ids) == 20
    await page.click("#tokens-again")
    await page.wait_for("document.querySelector('.column .figures').textContent.includes('tokens again')")
    assert await shown(page) == other
    await page.click(".branches button")
    assert await shown(page) == first


async def test_columns_part_where_their_tokens_do(page: Page) -> None:
    await set_value(page, "#tokens-columns", "2")
    await set_value(page, ".column:nth-child(2) [data-name=transport]", "websocket")
    assert await run(page) == await shown(page, 2)
    assert await page.text("#tokens-difference") == "The answers have the same tokens so far."
    await set_value(page, "#tokens-prompt", "aa")
    await run(page)
    await branch(page, 2, 0)
    await page.wait_for("document.querySelector('#tokens-difference').textContent.startsWith('They part at token 3: ')")
    assert await page.evaluate("document.querySelectorAll('.column .differs').length") == 2


async def test_another_server_answers_beside_this_one_and_gets_no_key_of_ours(browser: Browser) -> None:
    async with server_starter() as start:
        other = await start(
            FakeEngineClient(respond=lambda prompt, _: list(b"from afar")), allowed_origins=("*",),
            api_keys=("key-of-the-other",),
        )  # fmt: skip
        own = await start(FakeEngineClient(respond=letters), playground_peers=(other.url,))
        page = await open_tokens(browser, own.url)
        await set_value(page, "#tokens-columns", "2")
        server = ".column:nth-child(2) [data-name=server]"
        await set_value(page, server, other.url)
        await page.click("#tokens-run")
        await page.wait_for("document.querySelector('.column:nth-child(2) .error').textContent.includes('API key')")
        await set_value(page, ".column:nth-child(2) input[type=password]", "key-of-the-other")
        for transport in ("sse", "websocket"):
            await set_value(page, ".column:nth-child(2) [data-name=transport]", transport)
            await run(page)
            assert "".join(await shown(page, 2)) == "from afa"
            assert "".join(await shown(page, 1)) != "from afa"
        keys = [params["request"]["headers"].get("Authorization") for method, params in page.events
                if method == "Network.requestWillBeSent" and params["request"]["url"].startswith(own.url)]  # fmt: skip
        assert set(keys) == {None}
        await page.click("[data-view=raw]")
        await page.close()


async def test_latency_and_events_and_the_request_in_other_words(page: Page) -> None:
    await run(page)
    await page.click("[data-view=latency]")
    assert "first token" in await page.text(".column .figures")
    await page.wait_for("document.querySelector('.strip').width > 100")
    await page.click("[data-view=raw]")
    await page.wait_for("document.querySelectorAll('.raw-events li').length >= 2")
    assert '"token_ids"' in await page.text(".raw-events")
    assert "curl" in await page.text("#raw pre")
    assert "Once upon a time" in await page.text("#raw pre")


async def test_a_link_brings_the_whole_setup_and_sends_none_of_it(browser: Browser, server: RunningServer) -> None:
    page = await open_tokens(browser, server.url)
    await set_value(page, "#tokens-prompt", "a secret ☃")
    await set_value(page, "#tokens-columns", "3")
    await page.evaluate("document.querySelector('#more-parameters').open = true")
    await set_value(page, "#parameter-top_k", "7")
    await set_value(page, ".column:nth-child(2) [data-name=parameters]", '{"min_p": 0.25}')
    await run(page)
    sent = {stream.params.seed for stream in server.engine.submitted[-3:]}
    await page.click("#tokens-link")
    fragment = await page.wait_for("location.hash.startsWith('#setup=') && location.hash")
    await page.close()
    page = await browser.open(f"{server.url}/{fragment}")
    await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
    await page.wait_for("!document.querySelector('#tokens').hidden")
    assert await page.evaluate("document.querySelector('#tokens-prompt').value") == "a secret ☃"
    assert await page.evaluate("document.querySelectorAll('.column').length") == 3
    assert await page.evaluate("document.querySelector('#parameter-top_k').value") == "7"
    await run(page)
    again = [stream.params for stream in server.engine.submitted[-3:]]
    assert {params.seed for params in again} == sent
    assert [params.top_k for params in again] == [7, 7, 7]
    assert sorted(params.min_p for params in again) == [0.0, 0.0, 0.25]
    assert await page.evaluate("document.querySelector('#tokens').hidden") is False
    assert not any("setup=" in url.partition("#")[0] for url in page.urls())
    await page.close()


async def test_a_hostile_token_shows_as_text(browser: Browser) -> None:
    async with server_starter() as start:
        hostile = await start(FakeEngineClient(respond=lambda prompt, params: list(b"<b>x</b>")))
        page = await open_tokens(browser, hostile.url)
        assert "".join((await run(page))[:8]) == "<b>x</b>"
        assert await page.evaluate("document.querySelector('.tokens b')") is None
        await page.close()


async def test_with_the_real_model_ids_are_the_apis_and_branches_replay(
    browser: Browser, real_engine: Engine, text_model: TextModel
) -> None:
    engine = EngineClient(real_engine)
    engine.start(asyncio.get_running_loop())
    async with serving(engine, text_model, admin_keys=("operator",)) as server:
        page = await open_tokens(browser, server.url)
        await set_value(page, "#seed", "7")
        texts = await run(page)
        body: dict[str, Any] = {
            "prompt": "Once upon a time", "max_tokens": 8, "seed": 7,
            "return_token_ids": True, "logprobs": 5,
        }  # fmt: skip
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{server.url}/v1/completions", json=body) as response,
        ):
            (choice,) = (await response.json())["choices"]
        assert texts == choice["logprobs"]["tokens"]
        await page.click(".tokens [data-at='5']")
        assert f"id {choice['token_ids'][5]} " in await page.text(CARD)
        first = await branch(page, 2, 1)
        await page.click(".branches button")
        assert await shown(page) == texts
        assert await branch(page, 2, 1) == first
        await page.click("#tab-engine")
        await page.wait_for("Number(document.querySelector('#engine-waiting').textContent) === 0")
        lanes = check_trace(await saved_trace(page, "operator"))
        assert {slice_["name"] for slice_ in lanes["host"]} == {"schedule", "dispatch", "wait", "commit"}
        assert len(lanes["device"]) >= len(texts)
        assert page.complaints() == []
        await page.close()
        await server.wait_idle()
    engine.shutdown()
