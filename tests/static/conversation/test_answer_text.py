"""What stands in an answer, as a browser shows it: lists, tables, formulas, code, JSON."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.static.support.devtools import Browser, Page
from tests.static.support.stub_server import STATIC, StubServer

pytestmark = pytest.mark.asyncio(loop_scope="session")

HAS_KATEX = any((STATIC / "packages").glob("katex@*"))
needs_katex = pytest.mark.skipif(not HAS_KATEX, reason="KaTeX was not fetched")

# An answer in the page's own style, without the conversation around it.
OPEN = """
(async () => {
  const { MarkdownView } = await import("/static/js/markdown/view.js");
  const article = document.createElement("article");
  article.className = "message assistant";
  const content = document.createElement("div");
  content.className = "content";
  article.append(content);
  document.querySelectorAll("body > *").forEach((part) => (part.hidden = true));
  document.querySelector("article.of-test")?.remove();
  article.classList.add("of-test");
  document.body.prepend(article);
  window.content = content;
  window.view = new MarkdownView(content);
})()
"""


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    server = StubServer()
    await server.start()
    page = await browser.open(server.origin + "/", width=420)
    await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
    await page.evaluate(OPEN)
    yield page
    await page.close()
    await server.stop()


async def show(page: Page, *pieces: str) -> None:
    for piece in pieces:
        await page.evaluate(f"view.append({json.dumps(piece)})")


async def test_numbers_of_lists_have_room(page: Page) -> None:
    """The marker of an item lies left of it, within the list's padding; the message cuts off what is left of that."""
    for first in (10, 123, 1234, 12345, 1234567):
        await page.evaluate(OPEN)
        await show(page, f"{first}. item")
        room = await page.evaluate("parseFloat(getComputedStyle(content.querySelector('ol')).paddingLeft)")
        width = await page.evaluate(
            f"""(() => {{
              const probe = document.createElement("span");
              probe.textContent = "{first}. ";
              content.append(probe);
              return probe.getBoundingClientRect().width;
            }})()"""
        )
        assert room >= width, first


async def test_tables_wrap_between_words_and_scroll(page: Page) -> None:
    words = ["Ingredient", "Substitution", "Temperature", "Characteristics", "Manufacturer", "Availability"]
    await show(page, f"|{'|'.join(words)}|\n|{'--|' * len(words)}\n|{'|'.join(words)}|\n")
    heights = await page.evaluate("[...content.querySelectorAll('td')].map((cell) => cell.clientHeight)")
    line = await page.evaluate("parseFloat(getComputedStyle(content.querySelector('td')).lineHeight)")
    assert max(heights) < 2 * line
    assert await page.evaluate("((table) => table.scrollWidth > table.clientWidth)(content.querySelector('.table'))")
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@needs_katex
async def test_formulas_are_drawn_where_the_policy_forbids_styles_in_the_text(page: Page) -> None:
    await show(page, r"Let \(a_1\), $b^2$ and $$\begin{aligned} x &= \frac{1}{2} \\ y &= \sqrt{z} \end{aligned}$$ be.")
    await page.wait_for("content.querySelectorAll('math').length === 3")
    assert await page.evaluate("content.querySelectorAll('.formula.display math[display=block]').length") == 1
    assert await page.evaluate("content.querySelector('.mfrac') !== null")
    assert page.complaints() == []


@needs_katex
async def test_once_the_library_is_there_a_formula_is_drawn_with_the_token_that_ends_it(page: Page) -> None:
    await show(page, r"\(x\) ")
    await page.wait_for("content.querySelector('math') !== null")
    await page.evaluate("new Promise((resolve) => setTimeout(resolve))")  # a turn of its own, as each token has
    await show(page, r"and \(a_", r"1 + *b")
    assert (await page.evaluate("content.textContent")).endswith(r"\(a_1 + *b")
    seen = await page.evaluate(r"view.append('*\\)'), content.querySelectorAll('math').length")
    assert seen == 2


@needs_katex
async def test_the_source_of_a_formula_that_cannot_be_drawn_stays(page: Page) -> None:
    source = r"\(\nonsense{\,a\\\)"
    await show(page, f"x {source} $y$")
    await page.wait_for("content.querySelector('math') !== null")
    await page.wait_for("content.querySelector('.formula.failed') !== null")
    assert await page.evaluate("content.querySelector('.formula.failed').textContent") == source


@needs_katex
async def test_what_a_formula_may_ask_for_is_bounded(page: Page) -> None:
    await show(page, r"$\href{javascript:alert(1)}{x}$ $\def\a{\a\a}\a$ $\rule{9999em}{9999em}$ $\class{chat}{y}$ $z$")
    await page.wait_for("content.querySelectorAll('math').length >= 1")
    assert await page.evaluate("content.querySelector('[href]') === null")
    assert await page.evaluate("content.scrollHeight < 3000")


async def test_without_the_library_formulas_are_their_source(page: Page) -> None:
    await page.send("Network.setBlockedURLs", {"urls": ["*katex*"]})
    await show(page, r"Let \(a_1 \, b\\\) be *so*.")
    await page.evaluate("new Promise((resolve) => setTimeout(resolve, 300))")
    assert await page.evaluate("content.textContent") == r"Let \(a_1 \, b\\\) be so."


async def test_code_is_coloured_as_it_grows_and_copied_as_it_was_written(page: Page) -> None:
    code = 'def f():\n    """Says\n    it."""\n    return 1  # one\n'
    await show(page, "```python\n")
    await show(page, *code, "```\n")
    await page.wait_for("content.querySelector('.code-comment') !== null")
    kinds = await page.evaluate("[...content.querySelectorAll('code span')].map((span) => span.className)")
    assert kinds == [
        "code-keyword",
        "code-call",
        "code-string",
        "code-string",
        "code-keyword",
        "code-number",
        "code-comment",
    ]
    assert await page.evaluate("content.querySelector('pre').textContent") == code


async def test_a_long_block_touches_only_its_last_line(page: Page) -> None:
    await show(page, "```python\n" + "x = 1  # one\n" * 300)
    await page.wait_for("content.querySelectorAll('.code-comment').length === 300")
    await page.evaluate(
        """window.touched = 0,
        new MutationObserver((records) => (window.touched += records.length)).observe(content, {
          childList: true, subtree: true, characterData: true })"""
    )
    await show(page, "y", " =", " 2")
    assert await page.evaluate("touched") < 30


async def test_an_answer_that_is_json_is_code(page: Page) -> None:
    await show(page, '{"name": "Ada", "born": 1815, ', '"languages": ["English", "French"]}')
    await page.wait_for("content.querySelector('.code-key') !== null")
    assert await page.evaluate("content.querySelector('pre').textContent") == (
        '{\n  "name": "Ada",\n  "born": 1815,\n  "languages": [\n    "English",\n    "French"\n  ]\n}\n'
    )
