"""The server under attack, as an attack sees it."""

import asyncio
import random
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from benchmarks.chaos.ledger import Ledger

KEY = "chaos-key-of-the-attackers"
ADMIN_KEY = "chaos-key-of-operators"
MAX_BODY_BYTES = 4 << 20  # of the server


@dataclass(frozen=True, slots=True)
class Target:
    """The server, a session with a valid key, the random numbers of the attack, and its ledger."""

    url: str
    session: aiohttp.ClientSession
    draw: random.Random
    ledger: Ledger

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    def prompt(self) -> str:
        """Some share a beginning, so that the prefix cache is at work; some are long, so that pages run out."""
        words = ["tide", "river", "moon", "salt", "wave", "stone", "harbour", "wind"]
        start = "The log of the harbour master says: " * self.draw.choice([0, 0, 1, 20])
        return start + " ".join(self.draw.choices(words, k=self.draw.randint(1, 60)))

    def body(self, **more: Any) -> dict[str, Any]:
        body: dict[str, Any] = {"prompt": self.prompt(), "max_tokens": self.draw.randint(1, 60), "stream": True}
        if self.draw.random() < 0.3:
            body["temperature"] = self.draw.choice([0.0, 0.5, 1.0])
        if self.draw.random() < 0.1:
            body["logprobs"] = self.draw.randint(0, 5)
        if self.draw.random() < 0.1:
            body["n"] = self.draw.randint(2, 4)
        if self.draw.random() < 0.1:
            body["stop"] = ["e", "harbour w"]
        if self.draw.random() < 0.1:
            body["priority"] = self.draw.randint(0, 5)
        return body | more

    async def ask(
        self, attack: str, method: str, path: str, expected: tuple[int, ...], **options: Any
    ) -> tuple[int, bytes]:
        """Sends a request and reads its response to the end; any other status than the expected ones is a failure."""
        async with self.session.request(method, self.url + path, **options) as response:
            self.ledger.note_status(attack, response.status, expected, f"{method} {path}")
            told = await response.read()
            if not self.ledger.is_expected(response.status, expected):
                self.ledger.fail(f"{attack}: {method} {path} was told {told[:300]!r}")
            return response.status, told

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A TCP connection, for what no HTTP library would send."""
        return await asyncio.open_connection(*self.address)

    def head(self, method: str, path: str, *lines: str) -> bytes:
        host, port = self.address
        every = (f"{method} {path} HTTP/1.1", f"Host: {host}:{port}", f"Authorization: Bearer {KEY}", *lines)
        return "\r\n".join(every).encode() + b"\r\n\r\n"
