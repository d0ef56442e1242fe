"""A headless Chromium, driven over the DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from tests.patience import PATIENCE_S

WAIT_DEADLINE = PATIENCE_S
POLL_INTERVAL = 0.02  # seconds

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


def find_chromium() -> str | None:
    """The path of an installed browser of the family, if there is one."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    return None


class DevToolsError(RuntimeError):
    """The browser refused a command, or a script in the page threw."""


class Browser:
    """One browser process with a profile of its own; each page gets a fresh context without storage."""

    def __init__(self, executable: str) -> None:
        self._executable = executable
        self._profile = tempfile.TemporaryDirectory(prefix="eagre-chromium-", ignore_cleanup_errors=True)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._pages: dict[str, Page] = {}
        self._num_commands = 0

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            self._executable,
            *FLAGS,
            f"--user-data-dir={self._profile.name}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(PATIENCE_S):
            port, path = await self._read_port()
        self._http = aiohttp.ClientSession()
        self._socket = await self._http.ws_connect(f"ws://127.0.0.1:{port}{path}", max_msg_size=0)
        self._reader = asyncio.create_task(self._read())

    async def close(self) -> None:
        with suppress(DevToolsError):
            await self.send("Browser.close")
        self._reader.cancel()
        await self._socket.close()
        await self._http.close()
        await self._process.wait()
        self._profile.cleanup()

    async def close_pages(self) -> None:
        """Closes what a test left open when it failed, so that it takes no processor from the next one."""
        for page in list(self._pages.values()):
            await page.close()

    async def open(self, url: str, *, width: int = 1200, height: int = 800, scheme: str = "light") -> Page:
        """Opens `url` in a new context, once its network, console and log are being listened to."""
        context = await self.send("Target.createBrowserContext", {"disposeOnDetach": True})
        context_id = context["browserContextId"]
        target = await self.send("Target.createTarget", {"url": "about:blank", "browserContextId": context_id})
        attached = await self.send("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"], context_id)
        for domain in ("Page", "Runtime", "Network", "Log"):
            await page.send(f"{domain}.enable")
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await page.send("Emulation.setDeviceMetricsOverride", screen)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await page.send("Emulation.setEmulatedMedia", {"features": features})
        await page.send("Page.navigate", {"url": url})
        return page

    async def close_page(self, session_id: str, context_id: str) -> None:
        self._pages.pop(session_id, None)
        await self.send("Target.disposeBrowserContext", {"browserContextId": context_id})

    async def send(
        self, method: str, params: Mapping[str, Any] | None = None, session_id: str | None = None
    ) -> dict[str, Any]:
        """Sends one command and returns its result.

        Raises:
            DevToolsError: the browser refused it.
        """
        self._num_commands += 1
        number = self._num_commands
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        command: dict[str, Any] = {"id": number, "method": method, "params": dict(params or {})}
        if session_id is not None:
            command["sessionId"] = session_id
        await self._socket.send_json(command)
        return await answer

    async def _read_port(self) -> tuple[str, str]:
        """The port and path that the browser writes into its profile once it listens."""
        written = Path(self._profile.name) / "DevToolsActivePort"
        while True:
            if self._process.returncode is not None:
                raise DevToolsError(f"the browser ended with status {self._process.returncode}")
            lines = written.read_text().splitlines() if written.exists() else []
            if len(lines) == 2:
                return lines[0], lines[1]
            await asyncio.sleep(POLL_INTERVAL)

    async def _read(self) -> None:
        async for frame in self._socket:
            message = frame.json()
            if "id" not in message:
                if page := self._pages.get(message.get("sessionId", "")):
                    page.events.append((message["method"], message["params"]))
                continue
            answer = self._answers.pop(message["id"])
            if "error" in message:
                answer.set_exception(DevToolsError(message["error"]["message"]))
            else:
                answer.set_result(message["result"])
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(DevToolsError("the browser has gone"))


class Page:
    """One tab. `events` holds what it reported: (method, parameters), oldest first."""

    def __init__(self, browser: Browser, session_id: str, context_id: str) -> None:
        self._browser = browser
        self._session_id = session_id
        self._context_id = context_id
        self.events: list[tuple[str, dict[str, Any]]] = []

    async def send(self, method: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return await self._browser.send(method, params, self._session_id)

    async def close(self) -> None:
        await self._browser.close_page(self._session_id, self._context_id)

    async def evaluate(self, expression: str) -> Any:
        """The JSON value of a JavaScript expression; promises are awaited.

        Raises:
            DevToolsError: the expression threw.
        """
        params = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = await self.send("Runtime.evaluate", params)
        if "exceptionDetails" in answer:
            raise DevToolsError(f"{expression}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    async def wait_for(self, expression: str) -> Any:
        """Waits until the expression is truthy, and returns its value.

        Raises:
            AssertionError: it did not become so in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT_DEADLINE
        while not (value := await self._evaluate_across_loads(expression)):
            if loop.time() > deadline:
                shown = await self.evaluate("document.body.innerText")
                raise AssertionError(f"in {WAIT_DEADLINE} s this did not become true: {expression}\nthe page: {shown}")
            await asyncio.sleep(POLL_INTERVAL)
        return value

    async def _evaluate_across_loads(self, expression: str) -> Any:
        """The expression's value; None where the page was left while it was evaluated."""
        try:
            return await self.evaluate(expression)
        except DevToolsError as error:
            if "navigated" not in str(error) and "Execution context was destroyed" not in str(error):
                raise
            return None

    async def text(self, selector: str) -> str:
        """The text of the first element that matches, as it is in the document; waits for one to be there."""
        found: str = await self.wait_for(
            f"(element => element === null ? null : [element.textContent])(document.querySelector({selector!r}))"
        )
        return found[0]

    async def click(self, selector: str) -> None:
        """Clicks on the first element that matches; waits for one to be there."""
        found = f"document.querySelector({selector!r})"
        await self.wait_for(f"(element => element !== null && (element.click(), true))({found})")

    async def type(self, text: str) -> None:
        """Types into the focused element."""
        await self.send("Input.insertText", {"text": text})

    async def press(self, key: str, *, shift: bool = False) -> None:
        """Presses and releases one key, by its DOM name; Enter types a line end where nothing prevents it."""
        codes = {"Enter": 13, "Escape": 27, "ArrowRight": 39, "ArrowLeft": 37}
        event = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], "modifiers": 8 if shift else 0}
        if key == "Enter":
            event["text"] = "\r"
        await self.send("Input.dispatchKeyEvent", {"type": "keyDown", **event})
        await self.send("Input.dispatchKeyEvent", {"type": "keyUp", **event})

    async def screenshot(self) -> bytes:
        """What the page looks like, as a PNG file."""
        image = await self.send("Page.captureScreenshot", {"format": "png"})
        return base64.b64decode(image["data"])

    def urls(self) -> list[str]:
        """What the page asked for, over HTTP or WebSocket."""
        urls = [params["request"]["url"] for method, params in self.events if method == "Network.requestWillBeSent"]
        return urls + [params["url"] for method, params in self.events if method == "Network.webSocketCreated"]

    def complaints(self) -> list[str]:
        """Uncaught exceptions, console errors and warnings, refused policies, failed loads."""
        found = []
        for method, params in self.events:
            if method == "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                found.append(details.get("exception", {}).get("description", details["text"]))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(" ".join(str(argument.get("value")) for argument in params["args"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
        return found
