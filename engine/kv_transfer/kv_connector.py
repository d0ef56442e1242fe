"""The interface to a place outside of the engine that stores pages, and to the device that copies them."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

# One page's keys and values on the device, as `PageDevice` makes it and takes it back; opaque to everyone else.
DevicePage = Any


class KVConnector(Protocol):
    """Stores the pages of one model, computed in one way, by the 32 bytes of their names (`PageHash.hash_value`).

    Only `holds` is called by the engine thread. Several threads may call the other methods, which may block and raise
    no error of their medium.
    """

    def holds(self, name: bytes) -> bool:
        """Whether the page is probably there; never blocks."""

    def load(self, name: bytes) -> np.ndarray | None:
        """The content of a page, uint8[bytes of a page], as it was stored; None if it is unavailable."""

    def store(self, name: bytes, content: Sequence[np.ndarray]) -> bool:
        """Stores a page, the bytes of these arrays in order; returns False if that is impossible for now."""

    def touch(self, names: Sequence[bytes]) -> None:
        """Notes that the pages have been used, the first of a prefix first."""

    def forget(self, names: Sequence[bytes]) -> None:
        """Removes pages, because their content is wrong."""

    def clear(self) -> None:
        """Removes all pages."""

    def refresh(self) -> None:
        """Looks for changes by other processes; called at least once a minute."""


class PageDevice(Protocol):
    """Copies single pages out of the device's arrays and into them, in the order of the steps."""

    page_bytes: int

    def read_page(self, page_id: int) -> DevicePage:
        """Enqueues a copy of the page behind all steps dispatched so far. Engine thread."""

    def write_page(self, page_id: int, page: DevicePage) -> None:
        """Enqueues the writing of a page, before all steps that are dispatched later. Engine thread."""

    def to_host(self, page: DevicePage) -> list[np.ndarray]:
        """Waits for the copy; arrays whose bytes are the page's content. Any thread."""

    def to_device(self, content: np.ndarray) -> DevicePage:
        """Makes a page of its content, uint8[page_bytes]. Any thread."""
