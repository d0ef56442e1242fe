"""Measures how smoothly the playground draws a long answer with probabilities, frame by frame in Chromium.

    python -m benchmarks.page.frames                                # 5,000 tokens in each view, over SSE
    python -m benchmarks.page.frames --views tokens --transport websocket --tokens 2000
    python -m benchmarks.page.frames --url http://127.0.0.1:8000    # a server that runs, on another machine say

A server that this program starts gets one thread for the model (EAGRE_THREADS=1) and gives way to the browser (`nice`),
because a browser that shares its cores with a model mostly waits for one. "Main thread" is the time in which the page's
thread was busy, as the browser counts it. Of each long frame "worked" says for how long a processor ran the page's
thread in it: the rest of such a frame is time in which the thread waited for a processor.

Exits with 1 where the browser reports a frame of more than 50 ms, or where an answer lacks tokens.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.page.thread_time import ThreadTime, worked_between
from benchmarks.serving.command import at_least_one, new_parser, run, write_figures
from benchmarks.serving.resources import OtherLoad
from benchmarks.serving.server_process import ServerFailed, ServerProcess
from server.cli.bench.load.report import percentile
from tests.static.support.devtools import Browser, Page, find_chromium

PROGRAM = "benchmarks.page.frames"
PROBE = Path(__file__).with_name("frame_probe.js")
VIEWS = ("tokens", "latency", "raw", "chat")
LIMIT = 50.0  # milliseconds of one frame, and what the browser calls long
POLL_INTERVAL = 1.0  # seconds; each look at the page takes a little of its thread
ANSWER_TIMEOUT = 540.0  # seconds
LEGEND = (
    "frames: gaps between two of them in ms; long: frames of more than 50 ms, as the browser reports them; worked:\n"
    "for how long a processor ran the page's thread in one; main thread: share of the time in which it was busy, and\n"
    "the longest work without a break; others: share of the processor that other processes had"
)


class Frames(NamedTuple):
    """What one answer cost the page."""

    view: str
    num_tokens: int
    seconds: float
    gaps: list[float]  # milliseconds between frames
    long: list[dict[str, Any]]  # the frames of more than LIMIT: at, duration, worked, scripts
    most_worked: float  # milliseconds that a processor ran the page's thread for in its longest turn
    busy_share: float  # of the page's main thread, 0 to 1
    others: float | None  # share of the processor that all other processes had, the server's and the browser's aside

    def __str__(self) -> str:
        gaps = sorted(self.gaps)
        shown = ", ".join(f"{name} {percentile(gaps, percent):.1f}" for name, percent in (("p50", 50), ("p99", 99)))
        others = "-" if self.others is None else f"{self.others:.1%}"
        lines = [
            f"{self.view:>8}: {self.num_tokens:,} tokens in {self.seconds:.1f} s "
            f"({self.num_tokens / self.seconds:,.0f} tokens/s); {len(gaps):,} frames, {shown}, max {gaps[-1]:.1f} ms; "
            f"long {len(self.long)}; main thread {self.busy_share:.1%}, its longest turn {self.most_worked:.1f} ms; "
            f"others {others}"
        ]
        worst = sorted(self.long, key=lambda frame: -float(frame["duration"]))[:5]
        lines += [
            f"          {frame['duration']:.0f} ms, worked {frame['worked']:.0f} ms: "
            f"{', '.join(frame['scripts']) or 'no script'}"
            for frame in worst
        ]
        return "\n".join(lines)


async def measure(browser: Browser, url: str, view: str, options: argparse.Namespace) -> Frames:
    """Streams one answer into a view of a page of its own, and watches its frames; raises ServerFailed."""
    page = await browser.open(url + "/")
    await page.wait_for("document.querySelector('#server')?.dataset.state === 'ready'")
    await _set_up(page, view, options)
    await page.evaluate(PROBE.read_text("utf-8"))
    await page.send("Performance.enable")
    thread_time = ThreadTime(page)
    await thread_time.start()
    busy, began, noise = await _busy_seconds(page), time.perf_counter(), OtherLoad()
    await _ask(page, view)
    while not await page.evaluate(_IS_OVER[view == "chat"]):
        if time.perf_counter() - began > ANSWER_TIMEOUT:
            raise ServerFailed(f"the answer in the view {view!r} did not end in {ANSWER_TIMEOUT:g} s")
        await asyncio.sleep(POLL_INTERVAL)
    seconds = time.perf_counter() - began
    busy = await _busy_seconds(page) - busy
    others = noise.share()
    probe = await page.evaluate("(frameProbe.isOver = true, {gaps: frameProbe.gaps, long: frameProbe.long})")
    tasks = await thread_time.stop()
    for frame in probe["long"]:
        frame["worked"] = worked_between(tasks, frame["at"], frame["at"] + frame["duration"])
    most_worked = max((task.worked for task in tasks), default=0.0)
    num_tokens = await page.evaluate(_NUM_TOKENS.format(".message.assistant" if view == "chat" else ".column"))
    complaints = page.complaints()
    await page.close()
    if complaints:
        raise ServerFailed(f"the page complains: {complaints}")
    return Frames(view, num_tokens, seconds, probe["gaps"], probe["long"], most_worked, busy / seconds, others)


# By whether the view is the chat.
_IS_OVER = {
    False: "document.querySelector('#tokens-stop').hidden",
    True: "document.querySelector('.message.assistant')?.dataset.finish !== undefined",
}
# Another figure of an answer is "60 tokens/s", one of its prompt "7 of 9 tokens".
_NUM_TOKENS = (
    "Number([...document.querySelectorAll('{} .figure')]"
    ".map((part) => /^(?:stopped at )?([0-9]+) tokens?$/.exec(part.textContent))"
    ".find((found) => found !== null)?.[1] ?? 0)"
)


async def _set_up(page: Page, view: str, options: argparse.Namespace) -> None:
    await page.click(f"input[name=transport][value={options.transport}]")
    await page.evaluate("document.querySelector('#more-parameters').open = true")
    await _set_value(page, "#max-tokens", str(options.tokens))
    await page.evaluate("document.querySelector('#parameter-ignore_eos').click()")
    if view == "chat":
        await _set_value(page, "#parameter-top_logprobs", "5")
        await page.click("#tab-chat")
        return
    await page.click("#tab-tokens")
    await page.wait_for("!document.querySelector('#tokens').hidden")
    await page.click(f"#tokens-views [data-view={view}]")


async def _ask(page: Page, view: str) -> None:
    if view == "chat":
        await page.evaluate("document.querySelector('#chat-input').focus()")
        await page.type("Tell me a long story, with lists and headings.")
        await page.press("Enter")
        await page.wait_for("document.querySelector('.message.assistant') !== null")
    else:
        await page.click("#tokens-run")
        await page.wait_for("!document.querySelector('#tokens-stop').hidden")


async def _set_value(page: Page, selector: str, value: str) -> None:
    await page.evaluate(
        f"(() => {{ const field = document.querySelector({selector!r}); field.value = {value!r};"
        "for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind, {bubbles: true})); })()"
    )


async def _busy_seconds(page: Page) -> float:
    found = await page.send("Performance.getMetrics")
    return float(next(metric["value"] for metric in found["metrics"] if metric["name"] == "TaskDuration"))


@contextlib.contextmanager
def _server(options: argparse.Namespace) -> Iterator[str]:
    if options.url:
        yield options.url.rstrip("/")
        return
    os.environ.setdefault("EAGRE_THREADS", "1")
    with ServerProcess.eagre(["--model", options.model] if options.model else [], prefix=["nice"]) as server:
        yield server.url


async def measure_all(url: str, options: argparse.Namespace) -> list[Frames]:
    executable = find_chromium()
    if executable is None:
        raise ServerFailed("no Chromium is installed")
    browser = Browser(executable)
    await browser.start()
    try:
        measured = []
        for view in options.views:
            measured.append(await measure(browser, url, view, options))
            print(measured[-1], flush=True)
        return measured
    finally:
        await browser.close()


def main(arguments: Sequence[str]) -> int:
    parser = new_parser(PROGRAM, __doc__)
    parser.add_argument("--url", help="of a server that runs, without keys; otherwise one is started")
    parser.add_argument("--model", help="of the server that is started: a name or a path")
    parser.add_argument("--views", nargs="+", choices=VIEWS, default=list(VIEWS))
    parser.add_argument("--transport", choices=("sse", "websocket"), default="sse")
    parser.add_argument("--tokens", type=at_least_one, default=5000, help="of each answer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(arguments)
    with _server(options) as url:
        measured = asyncio.run(measure_all(url, options))
    print(LEGEND)
    write_figures(options.json, PROGRAM, arguments, answers=[frames._asdict() for frames in measured])
    is_whole = all(frames.num_tokens == options.tokens for frames in measured)
    if not is_whole:
        print("an answer has fewer tokens than it was to have", file=sys.stderr)
    return 0 if is_whole and not any(frames.long for frames in measured) else 1


if __name__ == "__main__":
    run(PROGRAM, main)
