"""Two models in one server, as the page offers them: chosen for an answer, and one for each column."""

from __future__ import annotations

import pytest

from tests.server.serving.conftest import several
from tests.static.support.devtools import Browser
from tests.static.test_tokens_page import open_tokens, run, set_value, shown

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_model_is_chosen_and_two_are_compared(browser: Browser) -> None:
    async with several("tide ebb") as server:
        page = await open_tokens(browser, server.url)
        assert "".join(await run(page)).startswith("tide:")
        await set_value(page, "#model", "ebb")
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
