"""The page as a program that a browser installs."""

from __future__ import annotations

import json
import struct

import pytest
from yarl import URL

from tests.server.conftest import RunningServer
from tests.static.support.devtools import Browser, find_chromium

CHROMIUM = find_chromium()


async def test_the_manifest_opens_the_page_and_its_icons_are_there(server: RunningServer) -> None:
    url = URL(server.url + "/static/icons/manifest.webmanifest")
    async with server.http.get(url) as response:
        assert response.content_type == "application/manifest+json"
        manifest = json.loads(await response.text())
    for name in ("id", "start_url", "scope"):
        assert url.join(URL(manifest[name])) == URL(server.url + "/")
    assert {icon.get("purpose", "any") for icon in manifest["icons"]} == {"any", "maskable"}
    for icon in manifest["icons"]:
        async with server.http.get(url.join(URL(icon["src"]))) as response:
            assert response.content_type == icon["type"]
            image = await response.read()
        if icon["type"] == "image/png":
            width, height = struct.unpack(">II", image[16:24])
            assert icon["sizes"] == f"{width}x{height}"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
async def test_a_browser_would_install_the_page(server: RunningServer) -> None:
    assert CHROMIUM is not None
    browser = Browser(CHROMIUM)
    await browser.start()
    try:
        page = await browser.open(server.url + "/")
        await page.wait_for("document.readyState === 'complete'")
        found = await page.send("Page.getAppManifest")
        assert found["errors"] == []
        assert json.loads(found["data"])["name"] == "Eagre"
        errors = (await page.send("Page.getInstallabilityErrors"))["installabilityErrors"]
        # The test's browser has a profile like a private window, which installs nothing.
        assert [error["errorId"] for error in errors if error["errorId"] != "in-incognito"] == []
    finally:
        await browser.close()
