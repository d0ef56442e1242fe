"""The garbage collector of a process that serves."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from server.command.collector import calm_collector


class Cycle:
    """An object that only a collection can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def calm() -> Iterator[None]:
    threshold = gc.get_threshold()
    calm_collector()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("calm")
def test_a_collection_never_finds_much_to_free() -> None:
    """What it finds it frees in one go, while every stream waits."""
    waiting = most = 0

    def freed(_: object) -> None:
        nonlocal waiting
        waiting -= 1

    references = []
    for _ in range(20_000):
        references.append(weakref.ref(Cycle(), freed))
        waiting += 1
        most = max(most, waiting)
    assert most <= 2_000
