"""The adapters that operators have loaded and dropped while the replicas ran, for replicas that come later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from server.protocol.admin_requests import LoadAdapterBody, UnloadAdapterBody


class RoutedAdapters:
    """The calls after which a replica that has just been started has the adapters of all others."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()  # of calls about adapters, and of replicas that become ready
        self.tasks: set[asyncio.Task[Any]] = set()  # the calls that run, perhaps without their clients
        self._loaded: dict[str, LoadAdapterBody] = {}  # by name, in the order in which clients see them
        self._new: set[str] = set()  # those of them whose names the replicas did not have before
        self._dropped: dict[str, None] = {}  # other names, in order; some of them were given at the start
        self._lingering: dict[str, None] = {}  # names that came and went, and that a replica may have still

    def get(self, name: str) -> LoadAdapterBody | None:
        """The call that has loaded the adapter of this name."""
        return self._loaded.get(name)

    def add(self, body: LoadAdapterBody) -> None:
        """Notes that the replicas have loaded an adapter."""
        name = body.lora_name
        if name not in self._loaded and not body.load_inplace:
            self._new.add(name)
        self._loaded[name] = body

    def drop(self, name: str, *, is_everywhere: bool) -> None:
        """Notes that the replicas serve an adapter no longer.

        Of a name that came while they ran nothing is left, unless a replica may have it still.
        """
        self._loaded.pop(name, None)
        if name not in self._new:
            self._dropped[name] = None
        elif not is_everywhere:
            self._lingering[name] = None
        self._new.discard(name)

    def linger(self, name: str) -> None:
        """Notes a name that came while the replicas ran, that they do not serve, and that one may have still."""
        self._lingering[name] = None

    def forget_lingering(self) -> None:
        """Notes that every replica has got the calls."""
        self._lingering.clear()

    def calls(self) -> Iterator[LoadAdapterBody | UnloadAdapterBody]:
        """What a replica is told: first to drop, so that the order of the adapters is that of other replicas."""
        for name in dict.fromkeys(
            (*self._dropped, *self._lingering, *(name for name in self._loaded if name in self._new))
        ):
            yield UnloadAdapterBody(lora_name=name)
        yield from self._loaded.values()
