"""Measures how soon the playground is there: its first paint, and when it says that the server is ready.

    python -m benchmarks.page.loading                              # at 100 ms of round trip, cold and warm
    python -m benchmarks.page.loading --url http://127.0.0.1:8000 --latency 300 --rounds 9

The browser itself delays every answer by the round trip (Chromium's network emulation), but no handshake. "Cold" is a
browser that has never seen the page; "warm" opens it once more. Medians, and in brackets the quickest and the slowest.
"""

import argparse
import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.serving.command import at_least_one, new_parser, run, write_figures
from benchmarks.serving.server_process import ServerFailed, ServerProcess
from tests.static.support.devtools import Browser, Page, find_chromium

PROGRAM = "benchmarks.page.loading"
WATCH = """
new MutationObserver((_, observer) => {
  if (document.querySelector("#server")?.dataset.state !== "ready") return;
  window.readyAt = performance.now();
  observer.disconnect();
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-state"] });
"""
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


class Load(NamedTuple):
    """One opening of the page, in milliseconds since it began."""

    painted: float
    ready: float
    num_static: int  # requests for the page and its files that reached the server


async def measure(browser: Browser, url: str, latency: float) -> tuple[Load, Load]:
    """Opens the page in a browser that has never seen it, and once more."""
    page = await browser.open("about:blank")
    conditions = {"offline": False, "latency": latency, "downloadThroughput": -1, "uploadThroughput": -1}
    await page.send("Network.emulateNetworkConditions", conditions)
    await page.send("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
    cold = await _load(page, url)
    await page.send("Page.navigate", {"url": "about:blank"})
    await page.wait_for("location.href === 'about:blank'")
    warm = await _load(page, url)
    await page.close()
    return cold, warm


async def _load(page: Page, url: str) -> Load:
    page.events.clear()
    await page.send("Page.navigate", {"url": url + "/"})
    ready = await page.wait_for("window.readyAt")
    painted = await page.wait_for(PAINTED)
    return Load(painted, ready, _num_static(page, url))


def _num_static(page: Page, url: str) -> int:
    sent, cached = {}, set()
    for method, params in page.events:
        if method == "Network.requestWillBeSent":
            sent[params["requestId"]] = params["request"]["url"].removeprefix(url)
        elif method == "Network.requestServedFromCache" or (
            method == "Network.responseReceived" and params["response"].get("fromDiskCache")
        ):
            cached.add(params["requestId"])
    return sum(path == "/" or path.startswith("/static/") for key, path in sent.items() if key not in cached)


@contextlib.contextmanager
def _server(options: argparse.Namespace) -> Iterator[str]:
    if options.url:
        yield options.url.rstrip("/")
        return
    with ServerProcess.eagre(["--model", options.model] if options.model else []) as server:
        yield server.url


async def measure_all(url: str, options: argparse.Namespace) -> dict[str, list[Load]]:
    executable = find_chromium()
    if executable is None:
        raise ServerFailed("no Chromium is installed")
    browser = Browser(executable)
    await browser.start()
    try:
        await measure(browser, url, 0)  # the server reads its files with the first request
        rounds = [await measure(browser, url, options.latency) for _ in range(options.rounds)]
    finally:
        await browser.close()
    return {"cold": [cold for cold, _ in rounds], "warm": [warm for _, warm in rounds]}


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--url", help="of a server that runs, without keys; otherwise one is started")
    parser.add_argument("--model", help="of the server that is started: a name or a path")
    parser.add_argument("--latency", type=at_least_one, default=100, help="milliseconds of each answer")
    parser.add_argument("--rounds", type=at_least_one, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(arguments)
    with _server(options) as url:
        measured = asyncio.run(measure_all(url, options))
    for name, loads in measured.items():
        shown = [
            f"{word} {median(values):.0f} ms ({min(values):.0f} to {max(values):.0f})"
            for word, values in (
                ("painted", [load.painted for load in loads]),
                ("ready", [load.ready for load in loads]),
            )
        ]
        print(f"{name}: {', '.join(shown)}; requests for files {max(load.num_static for load in loads)}")
    loads_of = {name: [load._asdict() for load in loads] for name, loads in measured.items()}
    write_figures(options.json, PROGRAM, arguments, loads=loads_of)
    return 0


if __name__ == "__main__":
    run(PROGRAM, main)
