"""The adapters that operators have loaded and dropped while the replicas ran, for replicas that come later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from server.protocol.admin_requests import LoadAdapterBody, UnloadAdapterBody


class RoutedAdapters:
    """The calls after which a replica that has just been started has the adapters of all others."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # of calls about adapters, and of replicas that become ready
        self._loaded: dict[str, LoadAdapterBody] = {}  # by name, in the order in which clients see them
        self._dropped: dict[str, None] = {}  # names, in order; some of them were given at the start

    def get(self, name: str) -> LoadAdapterBody | None:
        """The call that has loaded the adapter of this name."""
        return self._loaded.get(name)

    def add(self, body: LoadAdapterBody) -> None:
        """Notes that the replicas have loaded an adapter."""
        self._loaded[body.lora_name] = body

    def drop(self, name: str) -> None:
        """Notes that the replicas serve an adapter no longer."""
        self._loaded.pop(name, None)
        self._dropped[name] = None

    def calls(self) -> Iterator[LoadAdapterBody | UnloadAdapterBody]:
        """What a replica is told: first to drop, so that the order of the adapters is that of other replicas."""
        for name in self._dropped:
            yield UnloadAdapterBody(lora_name=name)
        yield from self._loaded.values()
