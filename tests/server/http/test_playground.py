"""The playground's files over HTTP."""

from __future__ import annotations

import re

import pytest

from server.http.playground import lighten, load_playground
from server.startup.settings import ServerSettings, SettingsError
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.static.devtools import Browser, Page, find_chromium

CHROMIUM = find_chromium()


async def test_the_page_and_everything_it_names(server: RunningServer) -> None:
    async with server.http.get(server.url + "/") as response:
        assert response.content_type == "text/html"
        page = await response.text()
    links = re.findall(r'(?:href|src)="(static/[^"]+)"', page)  # relative, for a server with a prefix
    assert links
    for link in links:
        async with server.http.get(f"{server.url}/{link}") as response:
            assert response.status == 200, link
            if link.endswith(".js"):
                assert response.content_type == "text/javascript"


def test_comments_indentation_and_needless_spaces_are_not_sent_and_lines_keep_their_numbers() -> None:
    text = "/**\n * Why.\n */\nimport a;\n\n  /* one */ x = 'a // b';\n  // two\n  y /* three */ = `*/`;\n"
    assert lighten(text) == "\n\n\nimport a;\n\nx = 'a // b';\n\ny /* three */ = `*/`;\n"
    text = 'f( a, "b , c" ) ; // it\'s so\nconst { x } = y;\nr = /a , b/; // why\n'
    assert lighten(text) == 'f(a,"b , c");\nconst{x}=y;\nr = /a , b/;\n'
    assert lighten("a { b: c }\n", is_script=False) == "a { b: c }\n"


def test_the_whole_playground_is_small() -> None:
    assert sum(len(file.body) for file in load_playground().values()) < 360_000


async def test_other_servers_that_are_named_may_be_asked(start_server: StartServer) -> None:
    server = await start_server(playground_peers=("http://other:8001", "https://third"))
    async with server.http.get(server.url + "/") as response:
        assert (
            "connect-src 'self' ws: wss: http://other:8001 https://third;"
            in response.headers["Content-Security-Policy"]
        )
        assert '<meta id="peers" content="http://other:8001 https://third">' in await response.text()


@pytest.mark.parametrize(
    "peer", ["other", "http://a b", "http://a; script-src *", "http://a/", "ftp://a", "http://[::1]:1"]
)
def test_what_is_no_origin_cannot_stand_in_the_policy(peer: str) -> None:
    with pytest.raises(SettingsError, match="must be an origin"):
        ServerSettings(playground_peers=(peer,))


async def test_every_module_is_served(server: RunningServer) -> None:
    for path, file in load_playground().items():
        async with server.http.get(f"{server.url}/static/{path}") as response:
            assert await response.read() == file.body


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [
        ("gzip, deflate, br", True),
        ("*", True),
        ("br;q=1, GZIP ; q=0.5", True),
        ("gzip;q=0", False),
        ("gzip;q=0, *", False),
        ("identity", False),
    ],
)
async def test_files_are_compressed_for_clients_that_take_it(
    server: RunningServer, accepted: str, is_packed: bool
) -> None:
    file = load_playground()["js/app.js"]
    url = server.url + "/static/js/app.js"
    async with server.http.get(url, headers={"Accept-Encoding": accepted}) as response:
        assert await response.read() == file.body  # the client has unpacked it
        assert response.headers["Vary"] == "Accept-Encoding"
        assert response.headers.get("Content-Encoding") == ("gzip" if is_packed else None)
        assert int(response.headers["Content-Length"]) == len(file.packed if is_packed else file.body)
        etag = response.headers["ETag"]
    other = "identity" if is_packed else "gzip"
    for again, status in ((accepted, 304), (other, 200)):
        async with server.http.get(url, headers={"Accept-Encoding": again, "If-None-Match": etag}) as response:
            assert response.status == status


@pytest.mark.parametrize("path", ["/", "/static/index.html", "/static/js/app.js"])
async def test_only_our_own_scripts_run_in_the_page(server: RunningServer, path: str) -> None:
    async with server.http.get(server.url + path) as response:
        directives = response.headers["Content-Security-Policy"].split("; ")
        etag = response.headers["ETag"]
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert directives == [
        "default-src 'self'",
        "connect-src 'self' ws: wss:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    async with server.http.get(server.url + path, headers={"If-None-Match": etag}) as response:
        assert response.headers["Content-Security-Policy"].split("; ") == directives


def test_the_page_has_nothing_inline() -> None:
    """The policy would keep it from working."""
    page = load_playground()["index.html"].body.decode()
    assert not re.search(r"<style|\bstyle=|\son\w+=|<script(?![^>]*\ssrc=)|javascript:|data:", page)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
async def test_a_browser_has_nothing_to_complain_of(server: RunningServer) -> None:
    """The page works under its own policy: the browser reports whatever it refuses."""
    assert CHROMIUM is not None
    browser = Browser(CHROMIUM)

    async def continue_story(page: Page, transport: str) -> None:
        num_asked = len(server.engine.submitted)
        await page.click(f"input[name=transport][value={transport}]")
        await page.click("#completion-new")
        await page.wait_for("document.querySelector('#chat').dataset.kind === 'completion'")
        await page.evaluate("document.querySelector('#story-text').focus()")
        await page.type("Once upon a time")
        await page.press("Enter")
        await eventually(lambda: len(server.engine.submitted) > num_asked)
        await page.wait_for("document.querySelector('#story-page').dataset.finish")

    await browser.start()
    try:
        page = await browser.open(server.url + "/")
        await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
        await continue_story(page, "sse")
        await continue_story(page, "websocket")
        assert page.complaints() == []
        page = await browser.open(server.url + "/docs")
        await page.wait_for("document.querySelectorAll('details').length > 20")
        await page.click("#post_v1_completions summary")
        await page.click("#post_v1_completions button[type=submit]")
        await page.wait_for("document.querySelector('#post_v1_completions pre')?.textContent.includes('[DONE]')")
        assert page.complaints() == []
    finally:
        await browser.close()


async def test_a_known_etag_gets_a_304(server: RunningServer) -> None:
    async with server.http.get(server.url + "/") as response:
        etag = response.headers["ETag"]
    async with server.http.get(server.url + "/", headers={"If-None-Match": etag}) as response:
        assert response.status == 304
        assert await response.read() == b""
    async with server.http.get(server.url + "/", headers={"If-None-Match": '"old"'}) as response:
        assert response.status == 200


@pytest.mark.parametrize(
    "path",
    ["/static/../pyproject.toml", "/static/%2e%2e/pyproject.toml", "/static/__init__.py", "/static/js", "/static/"],
)
async def test_nothing_else_is_served(server: RunningServer, path: str) -> None:
    from yarl import URL

    async with server.http.get(URL(server.url + path, encoded=True)) as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "unknown_url"
