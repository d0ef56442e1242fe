"""An independent reader of resumable streams, which notes where it stands."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.server.conftest import Address


@dataclass
class Follower:
    """Reads one stream over as many connections as it takes, as a browser's EventSource would."""

    server: Address
    stream_id: str = ""
    last_id: str = ""
    data: list[str] = field(default_factory=list)  # of each event
    status: int = 0

    async def begin(self, path: str, body: dict[str, Any], most: int | None = None) -> None:
        """Asks for a stream and reads `most` events of it; None: all."""
        asked = {**body, "stream": True, "resumable": True}
        async with self.server.http.post(self.server.url + path, json=asked) as response:
            assert response.status == 200, await response.text()
            self.stream_id = response.headers["X-Eagre-Stream"]
            await self._read(response, most)

    async def go_on(self, most: int | None = None, **headers: str) -> None:
        """Comes back for `most` further events; None: for all."""
        asked = {"Last-Event-ID": self.last_id, **headers} if self.last_id else headers
        url = f"{self.server.url}/v1/streams/{self.stream_id}"
        async with self.server.http.get(url, headers=asked) as response:
            await self._read(response, most)

    async def _read(self, response: aiohttp.ClientResponse, most: int | None) -> None:
        self.status = response.status
        rest, num_read = b"", 0
        if most == 0 or response.status != 200:
            return
        async for piece in response.content.iter_any():
            *blocks, rest = (rest + piece).split(b"\n\n")
            for block in blocks:
                lines = dict(line.split(": ", 1) for line in block.decode().split("\n"))
                if "data" not in lines:
                    continue
                self.last_id = lines.get("id", self.last_id)
                self.data.append(lines["data"])
                num_read += 1
                if num_read == most:
                    return
        assert rest == b""

    @property
    def is_done(self) -> bool:
        return self.data[-1:] == ["[DONE]"]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.data if text != "[DONE]"]

    def text(self, index: int = 0) -> str:
        """What one answer's chunks say together."""
        choices = [choice for chunk in self.chunks for choice in chunk["choices"] if choice["index"] == index]
        return "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)
