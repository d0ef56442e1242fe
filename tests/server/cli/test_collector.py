"""The garbage collector of a process that serves."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from server.cli.collector import calm_collector, put_off_collections


class Cycle:
    """An object that only a collection can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def put_off() -> Iterator[None]:
    threshold = gc.get_threshold()
    gc.unfreeze()
    put_off_collections()
    yield
    gc.set_threshold(*threshold)


@pytest.mark.usefixtures("put_off")
def test_a_start_collects_nothing_and_what_it_left_is_never_looked_at_again() -> None:
    gone: list[None] = []

    def freed(_: object) -> None:
        gone.append(None)

    references = [weakref.ref(Cycle(), freed) for _ in range(200_000)]
    calm_collector()
    gc.collect()
    assert not gone
    gc.unfreeze()
    gc.collect()
    assert len(gone) == len(references)


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
