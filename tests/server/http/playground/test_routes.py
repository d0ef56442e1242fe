"""The playground's files over HTTP."""

from __future__ import annotations

import html
import json
import re
from importlib.resources import files

import pytest
from multidict import CIMultiDictProxy

from server.http.playground.files import PAGES, Playground
from server.startup.settings import ServerSettings, SettingsError
from tests.server.conftest import RunningServer, StartServer, eventually
from tests.static.support.devtools import Browser, Page, find_chromium

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


def test_what_a_page_loads_is_small() -> None:
    playground = Playground()
    packed = {path: len(file.packed or file.body) for path, file in playground.loaded.items()}
    assert sum(length for path, length in packed.items() if path.startswith("app-")) < 100_000
    page = playground.page("index.html", is_plain=False, is_open=True)
    assert page.packed is not None
    assert len(page.packed) < 8_000


def test_the_operators_page_is_a_script_of_its_own() -> None:
    scripts = {path: file.body.decode() for path, file in Playground().loaded.items() if path.endswith(".js")}
    (first,) = (text for path, text in scripts.items() if path.startswith("app-"))
    (operators,) = (text for path, text in scripts.items() if path.startswith("engine_view-"))
    assert "/engine/events" in operators
    assert "/engine/events" not in first


def immutable(headers: CIMultiDictProxy[str]) -> bool:
    return headers["Cache-Control"] == "public, max-age=31536000, immutable"


async def test_a_page_names_one_script_and_one_style_sheet_that_may_be_kept(server: RunningServer) -> None:
    for path in ("/", "/docs"):
        async with server.http.get(server.url + path) as response:
            assert response.headers["Cache-Control"] == "no-cache"
            page = await response.text()
        assert len(re.findall(r"<script", page)) == len(re.findall(r'rel="stylesheet"', page)) == 1
        preloaded = re.findall(r'<link rel="modulepreload" href="(static/[^"]+)">', page)
        assert preloaded == re.findall(r'<script type="module" src="([^"]+)">', page)
        for link in re.findall(r'(?:href|src)="(static/[^"]+)"', page):
            async with server.http.get(f"{server.url}/{link}") as response:
                assert immutable(response.headers), link


@pytest.mark.parametrize("path", ["/", "/?modules"])
async def test_what_the_script_wants_first_comes_with_the_page_or_is_asked_beside_it(
    start_server: StartServer, path: str
) -> None:
    async def page_of(server: RunningServer) -> tuple[list[str], str, str]:
        async with server.http.get(server.url + path) as response:
            page, etag = await response.text(), response.headers["ETag"]
        (state,) = re.findall(r'<meta id="state" content="([^"]*)">', page)
        asked = re.findall(r'<link rel="preload" href="([^"]+)" as="fetch" crossorigin>', page)
        return asked, html.unescape(state), etag

    server = await start_server()
    asked, state, etag = await page_of(server)
    assert (asked, json.loads(state)["data"]) == ([], (await server.get("/v1/models"))[1]["data"])
    assert (await page_of(server))[2] == etag
    await server.engine.client.lifecycle.pause()
    assert json.loads((await page_of(server))[1])["data"][0]["state"] == "paused"  # what is told is never old
    assert (await page_of(await start_server(api_keys=("sk-client-1",))))[:2] == (["readiness"], "")


def test_a_page_of_a_server_that_is_not_ready_asks_for_its_state() -> None:
    page = Playground().page("index.html", is_plain=False, is_open=True)
    assert re.findall(rb'rel="preload" href="([^"]+)"', page.body) == [b"readiness", b"v1/models"]


async def test_a_name_without_its_digest_is_asked_for_each_time(server: RunningServer) -> None:
    for path in ("favicon.svg", "favicon.svg?v=old", "js/app.js"):
        async with server.http.get(f"{server.url}/static/{path}") as response:
            assert response.headers["Cache-Control"] == "no-cache"
    async with server.http.get(f"{server.url}/static/app-0123456789abcdef.js") as response:
        assert response.status == 404


async def test_packages_are_served_as_they_are(server: RunningServer) -> None:
    paths = [path for path in Playground().paths if path.startswith("packages/")]
    if not paths:
        pytest.skip("no package was fetched")
    assert not [path for path in paths if path.endswith((".json", ".py"))]
    types = {".mjs": "text/javascript", ".js": "text/javascript", ".css": "text/css", ".woff2": "font/woff2"}
    for suffix, content_type in types.items():
        path = next(path for path in paths if path.endswith(suffix))
        async with server.http.get(f"{server.url}/static/{path}") as response:
            assert response.content_type == content_type
            assert immutable(response.headers)
            assert await response.read() == (files("static") / path).read_bytes()


async def test_the_plain_modules_may_be_had(server: RunningServer) -> None:
    async with server.http.get(server.url + "/?modules") as response:
        page = await response.text()
    assert '<script type="module" src="static/js/app.js">' in page
    assert page.count('rel="stylesheet"') > 1


async def test_the_pages_can_be_taken_away(start_server: StartServer) -> None:
    server = await start_server(no_playground=True)
    for path in ("/", "/docs", "/static/favicon.svg"):
        assert (await server.get(path))[0] == 404, path
    assert (await server.get("/v1/models"))[0] == 200


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
    playground = Playground()
    for path in playground.paths:
        if path.startswith("js/"):
            async with server.http.get(f"{server.url}/static/{path}") as response:
                assert await response.read() == playground.load(path).body


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
    file = Playground().load("js/app.js")
    assert file.packed is not None
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
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    async with server.http.get(server.url + path, headers={"If-None-Match": etag}) as response:
        assert response.headers["Content-Security-Policy"].split("; ") == directives


async def test_the_frame_of_a_preview_can_reach_nothing(server: RunningServer) -> None:
    for name in ("index.html", "preview.js"):
        async with server.http.get(f"{server.url}/static/preview/{name}") as response:
            directives = response.headers["Content-Security-Policy"].split("; ")
        assert directives[0] == "default-src 'none'"
        assert "script-src 'self'" in directives
        assert "sandbox allow-scripts" in directives  # also where somebody opens it by itself


def test_the_page_has_nothing_inline() -> None:
    """The policy would keep it from working."""
    playground = Playground()
    for path in PAGES:
        page = playground.page(path, is_plain=False, is_open=True)
        assert not re.search(rb"<style|\bstyle=|\son\w+=|<script(?![^>]*\ssrc=)|javascript:|data:", page.body)


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
